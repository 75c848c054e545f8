"""The wire contract of ``/health`` and ``/info``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from model.labels import ModelKind

Fault = Literal["worker_dead", "worker_hung", "self_check_failed", "non_finite_output"]
"""What the server can find wrong with itself, worst first."""


class Health(BaseModel):
    """Answer of the health routes."""

    status: Literal["ready", "live", "loading", "draining", "failing"]
    reason: Fault | None = Field(None, description="Why it is failing; only then.")
    detail: str | None = Field(None, description="The same for people; only then.")


class ServedModelInfo(BaseModel):
    """One served model."""

    name: str
    kind: ModelKind = Field(
        description="What it gives: embeddings, sparse vectors, vectors of tokens, scores of labels or of pairs."
    )
    labels: list[str] = Field(description="Of a classifier or a reranker, in the order of its logits.")
    format: str = Field(description="Checkpoint family.")
    dimensions: int = Field(description="Of an embedding, or of late interaction's vectors; 0 where there are none.")
    max_length: int = Field(description="Tokens that are read of a text, special tokens included.")
    pooling: str = Field(description="What an embedding, or the classification head, is made of; or splade, or none.")
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_parameters: int
    num_ignored_tensors: int = Field(description="Tensors of the checkpoint that are known and not used.")
    dtype: str
    device: str
    special_tokens: str = Field(description='What a typed "[SEP]" is: its characters (text) or the token (parse).')
    prompts: list[str]
    attention: bool = Field(description="Whether attention maps can be asked for.")


class EmbeddingType(BaseModel):
    """What text-embeddings-inference says of a model that embeds."""

    pooling: str


class LabelledType(BaseModel):
    """What it says of a classifier or a reranker."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class InfoResponse(BaseModel):
    """Answer of ``/info``; the first fields are those that text-embeddings-inference clients read."""

    model_id: str
    model_sha: str | None = Field(None, description="Always null.")
    model_dtype: str
    model_type: dict[ModelKind, EmbeddingType | LabelledType]
    served_model_name: str
    max_concurrent_requests: int = Field(description="Texts that may wait, for each model.")
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None = Field(None, description="Always null: tokens alone bound a batch.")
    max_client_batch_size: int = Field(description="Texts in one request.")
    auto_truncate: bool = Field(description="Of routes of text-embeddings-inference, where `truncate` is not sent.")
    tokenization_workers: int
    version: str
    sha: str | None = Field(None, description="Always null.")
    docker_label: str | None = Field(None, description="Always null.")
    threads: int
    batch_attention_values: int = Field(description="Attention weights computed in one batch.")
    max_queue_texts: int = Field(description="Texts that may wait, for each model.")
    max_queue_tokens: int = Field(description="Tokens that may wait; measured at the start unless it is set.")
    max_prompt_characters: int
    request_timeout_seconds: float | None
    max_text_characters: int
    max_body_bytes: int
    max_attention_values_list: int
    max_attention_values_binary: int
    max_attention_values_computed: int
    max_token_values: int
    models: list[ServedModelInfo]

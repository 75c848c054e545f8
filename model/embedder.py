"""The whole model behind one object: texts in, rows out. What the server's worker thread runs, and what a script uses.

>>> embedder = Embedder.load("weights/eyeline-base")       # doctest: +SKIP
>>> embedder.encode(["The cat sat.", "A dog barked."]).shape   # doctest: +SKIP
(2, 384)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from model.batch import GROUPING, Grouping, cut_by_tokens, pack, padding_ratio
from model.calibration import calibration_batches, calibration_texts
from model.checkpoint import LoadedEncoder, load_dense, load_encoder
from model.contract import (
    AttentionSelection,
    EncodeInput,
    FloatArray,
    HeadReduction,
    OutputSpec,
    RolloutSelection,
    Row,
    SpecialMode,
    Unit,
)
from model.core_choice import AttentionPath, choose_core, choose_grouping
from model.device import available_threads, choose_device, choose_dtype, keep_freed_memory
from model.encoder import Encoder
from model.errors import (
    AttentionNotSupportedError,
    AttentionSelectionError,
    CheckpointError,
    DimensionsError,
    ExplanationError,
    ModelKindError,
)
from model.fit import make_tokenizer
from model.folder import ModelFolder, read_folder
from model.heads import Dense
from model.int8 import has_kernel, observe_inputs, quantize_linear_layers
from model.labels import INSTEAD, ModelKind
from model.lanes import Lanes
from model.late_interaction import LateInteractionHead
from model.maps import Units, units_among
from model.memory import raising_memory_error
from model.pooling import Pooling, Spans
from model.rows import PackedStates, RowMaker, make_heads, to_array
from model.similarity import Projection, WideArray, similarity_map
from model.tokenizer import SpecialTokens, Text, Tokenizer

Run = Callable[[Sequence[EncodeInput], Sequence[OutputSpec]], list[Row]]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What there is to know of a loaded model; ``/info`` and ``eyeline info`` show it.

    Attributes
    ----------
    folder : Path
    format : str
        Checkpoint family.
    kind : ModelKind
    labels : tuple of str
        Of a classification head, in the order of its logits.
    num_parameters, num_ignored_tensors : int
    dimensions, hidden_size, num_hidden_layers, num_attention_heads, vocab_size, max_length : int
        Dimensions are those of an embedding, or of late interaction's vectors; a model that has neither has 0.
    pooling : str
        What an embedding, or the classification head, is made of; ``splade`` of a sparse model, ``none`` of late
        interaction.
    dtype, device : str
    threads : int
    special_tokens : str
    prompts : tuple of str
        Names.
    """

    folder: Path
    format: str
    kind: ModelKind
    labels: tuple[str, ...]
    num_parameters: int
    num_ignored_tensors: int
    dimensions: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    max_length: int
    pooling: str
    dtype: str
    device: str
    threads: int
    special_tokens: str
    prompts: tuple[str, ...]


class Embedder:
    """A tokenizer, an encoder, pooling and what follows it, loaded from one folder.

    Use :meth:`load`. Only one thread at a time may call :meth:`run`; the tokenizer may be shared.

    Attributes
    ----------
    gives_attention : bool
        Whether the model's attention can be given as maps, as that of every family served today can.
    """

    gives_attention = True

    def __init__(
        self,
        folder: ModelFolder,
        loaded: LoadedEncoder,
        tokenizer: Tokenizer,
        dense: Sequence[Dense],
        device: torch.device,
        dtype: str,
        *,
        grouping: Grouping | None = GROUPING,
    ) -> None:
        self.tokenizer = tokenizer
        self.config = loaded.encoder.config
        self.labels = folder.labels
        self.pooling: Pooling = folder.pooling
        self.device = device
        self._encoder = loaded.encoder
        late = folder.late_interaction
        self._dense = tuple(dense) if late is None else ()
        token_head = None if late is None else LateInteractionHead(dense, normalize=late.normalize)
        heads = make_heads(loaded.classifier, loaded.splade, token_head)
        self._row_maker = RowMaker(self.pooling, self._dense, heads)
        self._grouping = grouping
        self._lanes = Lanes(torch.get_num_threads() if device.type == "cpu" else 1)
        width = folder.dense[-1].out_features if folder.dense else self.config.hidden_size
        self.dimensions: int = width if folder.kind == "embedding" else 0
        self.info = ModelInfo(
            folder=folder.path,
            format=loaded.format.name,
            kind=folder.kind,
            labels=folder.labels.names if folder.labels else (),
            num_parameters=loaded.num_parameters,
            num_ignored_tensors=len(loaded.ignored_keys),
            dimensions=self.dimensions if late is None else width,
            hidden_size=self.config.hidden_size,
            num_hidden_layers=self.config.num_hidden_layers,
            num_attention_heads=self.config.num_attention_heads,
            vocab_size=self.config.vocab_size,
            max_length=tokenizer.max_length,
            pooling=loaded.classifier.config.pooling if loaded.classifier else folder.pooling_name,
            dtype=dtype,
            device=str(device),
            threads=torch.get_num_threads(),
            special_tokens=tokenizer.config.special_tokens,
            prompts=tuple(tokenizer.config.prompts),
        )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        special_tokens: SpecialTokens = "text",
        attention: AttentionPath = "fused",
    ) -> Embedder:
        """Load a model folder as the Hub, sentence-transformers or ``eyeline weights import`` write it.

        Parameters
        ----------
        folder : str or Path
        dtype : str
            "auto" (bfloat16 where the hardware multiplies it natively, else float32), "float32", "bfloat16",
            "float16", or "int8": the linear layers' products in bytes, everything between them in float32.
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        threads : int, optional
            CPU threads of the whole process; default: what affinity and the cgroup's quota allow.
        special_tokens : "text" or "parse"
            What a literal ``[SEP]`` in a text is: its characters, or the special token.
        attention : "fused" or "explicit"
            The attention core; same answers to within rounding.

        Raises
        ------
        CheckpointError
            If the folder cannot be served, in one sentence with the file and the key.
        ValueError
            If dtype or device are unknown or not there.
        """
        place = choose_device(device)
        is_int8 = dtype == "int8"
        if is_int8 and (place.type != "cpu" or not has_kernel()):
            raise ValueError("dtype 'int8' needs a CPU, and a PyTorch that was built with oneDNN")
        number_format = choose_dtype("float32" if is_int8 else dtype, place)
        threads = threads or available_threads()
        torch.set_num_threads(threads)
        keep_freed_memory(threads)
        described = read_folder(Path(folder))
        core = choose_core(attention, number_format, place)
        loaded = load_encoder(described, number_format, place, core, pack=not is_int8)
        tokenizer = make_tokenizer(described, loaded.encoder.config, special_tokens)
        _check_widths(described, loaded)
        if is_int8:
            _quantize(loaded.encoder, tokenizer)
        dense = [load_dense(config, place) for config in described.dense]
        name = "int8" if is_int8 else str(number_format).removeprefix("torch.")
        grouping = choose_grouping(attention, loaded.encoder.config, number_format, place, is_int8=is_int8)
        return cls(described, loaded, tokenizer, dense, place, name, grouping=grouping)

    def encode(
        self,
        texts: str | Sequence[Text],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        batch_tokens: int = 2048,
    ) -> FloatArray:
        """Encode texts in batches of like length.

        Parameters
        ----------
        texts : str, or sequence of str or pairs of str
        normalize : bool
            Whether embeddings are brought to unit length.
        dimensions : int, optional
            How many of the first ones are kept; default: all.
        prompt_name, prompt : str, optional
            What stands before every text: by its name in the model's folder, or itself.
        truncate : bool
            Whether a text of more tokens than the model reads is cut, or refused.
        batch_tokens : int
            Of one batch on all cores; 2,048 suit a CPU, a GPU takes some 16,000.

        Returns
        -------
        array, shape (n, dimensions), float32
            In the order of ``texts``.

        Raises
        ------
        InputError
            If a text, the prompt or ``dimensions`` cannot be served, or the model gives no embeddings.
        FloatingPointError
            If an embedding is not finite.
        """
        self.check_kind("embedding")
        many: Sequence[Text] = [texts] if isinstance(texts, str) else texts
        spec = OutputSpec(normalize=normalize, dimensions=self.check_dimensions(dimensions))
        inputs = self.tokenizer.encode(many, prompt=self.tokenizer.prompt(prompt_name, prompt), truncate=truncate)
        embeddings = np.empty((len(inputs), dimensions or self.dimensions), dtype=np.float32)
        num_tokens = [item.num_tokens for item in inputs]

        def fill(run: Run, batch: Sequence[int]) -> None:
            rows = run([inputs[index] for index in batch], [spec] * len(batch))
            for index, row in zip(batch, rows, strict=True):
                embeddings[index] = row.embedding

        if self._lanes and sum(num_tokens) > batch_tokens:  # each lane has batches of its own, and waits for no other
            # As many as there are turns of all lanes, or one would be left with the last batch alone.
            turns = math.ceil(sum(num_tokens) / batch_tokens)
            even = math.ceil(sum(num_tokens) / turns / len(self._lanes) + max(num_tokens) / 2)
            batches = [*cut_by_tokens(num_tokens, max(1, min(even, batch_tokens // len(self._lanes))))]
            self._lanes.run(partial(fill, self._run_part), batches)
        else:
            for batch in cut_by_tokens(num_tokens, batch_tokens):
                fill(self.run, batch)
        if not np.isfinite(embeddings).all():
            raise FloatingPointError("an embedding is not finite")
        return embeddings

    def run(self, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        """Run one batch.

        Parameters
        ----------
        inputs : sequence of B EncodeInput
        specs : sequence of B OutputSpec
            What each text's row shall hold; they may differ.

        Returns
        -------
        list of B Row
            In the order of ``inputs``. A row does not depend on the other texts of the batch beyond rounding.

        Raises
        ------
        ValueError
            If logits, sparse vectors or token vectors are asked for and the model has no head for them, or special
            tokens or words of a text that was tokenized without details.
        MemoryError
            If there is not enough memory for this batch. Nothing of it stays in memory: a smaller one may well run.
        """
        parts = self._lanes.split([item.input_ids for item in inputs])
        if len(parts) == 1:
            return self._run_part(inputs, specs)
        rows = [Row() for _ in inputs]

        def fill(part: Sequence[int]) -> None:
            found = self._run_part([inputs[index] for index in part], [specs[index] for index in part])
            for index, row in zip(part, found, strict=True):
                rows[index] = row

        self._lanes.run(fill, parts)
        return rows

    @raising_memory_error
    @torch.inference_mode()
    def _run_part(self, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        """Run a batch, or the part of one, on this thread. Parameters, returns and errors as :meth:`run`."""
        batch = pack(inputs, self.device, self._grouping)
        packed_inputs, packed_specs = [inputs[index] for index in batch.order], [specs[index] for index in batch.order]
        selections, tables = [spec.attention for spec in packed_specs], [item.tokens for item in packed_inputs]
        output = self._encoder(batch, selections, tables)
        rows = self._row_maker.rows(PackedStates(output.last_hidden_state, batch, packed_inputs, packed_specs))
        for row, maps in zip(rows, output.attentions, strict=True):
            row.attention = maps
        return [rows[place] for place in np.argsort(batch.order)]

    def padding_ratio(self, num_tokens: Sequence[int]) -> float:
        """Share of padding in what the attention core computes for a batch of texts of so many tokens, run whole."""
        return padding_ratio(num_tokens, self._grouping)

    @property
    def own_output(self) -> OutputSpec:
        """What the model is there for: an embedding, a sparse vector, vectors of tokens, or logits of its labels."""
        kind = self.info.kind
        return OutputSpec(
            pooled=kind == "embedding",
            logits=kind in ("classifier", "reranker"),
            sparse_vector=kind == "sparse",
            token_vectors=kind == "late_interaction",
        )

    def check_kind(self, *kinds: ModelKind, param: str = "model") -> None:
        """Refuse what only models of these kinds give.

        Raises
        ------
        ModelKindError
            With the kind that this model is, and what to ask of it.
        """
        if self.info.kind not in kinds:
            raise ModelKindError(f"this model is {INSTEAD[self.info.kind]}", param=param)

    def check_dimensions(self, dimensions: int | None, *, param: str = "dimensions") -> int | None:
        """Return ``dimensions`` if the model has as many.

        Raises
        ------
        DimensionsError
        ModelKindError
            If it gives no embeddings.
        """
        if dimensions is not None:
            self.check_kind("embedding", param=param)
        if dimensions is not None and not 1 <= dimensions <= self.dimensions:
            raise DimensionsError(
                f"dimensions must be from 1 to {self.dimensions}, not {dimensions}",
                param=param,
                limit=self.dimensions,
                actual=dimensions,
            )
        return dimensions

    def select_attention(
        self,
        layers: Sequence[int] | Literal["all"],
        heads: Sequence[int] | Literal["all"],
        *,
        reduce_heads: HeadReduction | None = None,
        unit: Unit = "token",
        special: SpecialMode = "keep",
        top_k: int | None = None,
        min_weight: float = 0.0,
        maps: bool = True,
        stats: bool = False,
        rollout: RolloutSelection | None = None,
        param: str = "attention",
    ) -> AttentionSelection:
        """Turn asked layers and heads (negative: from the end) into true numbers, in the asked order.

        The other fields are those of :class:`~model.contract.AttentionSelection`; ``rollout`` comes from
        :meth:`select_rollout`.

        Raises
        ------
        AttentionSelectionError
            If a layer or head does not exist, is named twice, or none is named.
        AttentionNotSupportedError
            If the model's attention has no maps.
        """
        if not self.gives_attention:
            raise AttentionNotSupportedError("this model's attention cannot be given as maps", param=param)
        return AttentionSelection(
            layers=_true_numbers(layers, self.config.num_hidden_layers, "layers", f"{param}.layers"),
            heads=_true_numbers(heads, self.config.num_attention_heads, "heads", f"{param}.heads"),
            reduce_heads=reduce_heads,
            unit=unit,
            special=special,
            top_k=top_k,
            min_weight=min_weight,
            maps=maps,
            stats=stats,
            rollout=rollout,
        )

    def select_rollout(
        self, residual: float, heads: HeadReduction, from_layer: int, *, param: str = "attention.rollout"
    ) -> RolloutSelection:
        """Choose a rollout from a layer (negative: from the end) to the last one, over all heads.

        Raises
        ------
        AttentionSelectionError
            If the layer does not exist.
        """
        num_layers = self.config.num_hidden_layers
        [first] = _true_numbers([from_layer], num_layers, "layers", f"{param}.from_layer", is_list=False)
        return RolloutSelection(residual, heads, tuple(range(first, num_layers)), self.config.num_attention_heads)

    def check_explainable(self, *, param: str = "explain") -> None:
        """Refuse to explain a cosine where an embedding is not the mean of one vector per token.

        Raises
        ------
        ExplanationError
            If the model pools otherwise, or something that is not linear follows: with the reason.
        """
        if self.pooling.mode != "mean":
            raise ExplanationError(
                f"this model pools by {self.pooling.mode}: its embedding is no mean over the tokens, "
                "so a cosine is no sum over pairs of them",
                param=param,
            )
        for number, dense in enumerate(self._dense, start=1):
            if dense.activation != "identity":
                raise ExplanationError(
                    f"dense layer {number} of this model applies {dense.activation} to the pooled vector: "
                    "what comes out is no sum over the tokens",
                    param=param,
                )

    @cached_property
    def projection(self) -> Projection:
        """What makes a token's last hidden state its share of the embedding, where :meth:`check_explainable` passes."""
        return Projection.compose(
            [
                (to_array(dense.weight), None if dense.linear.bias is None else to_array(dense.linear.bias))
                for dense in self._dense
            ]
        )

    def similarity_map(self, texts: Sequence[EncodeInput], rows: Sequence[Row], dimensions: int | None) -> WideArray:
        """Compute what each pair of pooled tokens adds to the cosine of two texts.

        Parameters
        ----------
        texts, rows : sequences of 2
            Rows with ``token_states``.
        dimensions : int or None
            Of the embeddings that are compared.

        Returns
        -------
        array, shape (n, m), float64
            See :func:`model.similarity.similarity_map`; n and m are the lengths of :meth:`pooled_tokens`.

        Raises
        ------
        ValueError
            If a row has no token states.
        """
        states = []
        for text, row in zip(texts, rows, strict=True):
            if row.token_states is None:
                raise ValueError("a map is made of token states, and the row has none")
            pooled = self.pooled_tokens(text)
            states.append(row.token_states[pooled.start : pooled.stop])
        first, second = states
        return similarity_map(first, second, self.projection, dimensions)

    def pooled_units(self, text: EncodeInput, unit: Unit) -> Units:
        """Find what the rows (or columns) of a text's similarity maps stand for.

        Raises
        ------
        ValueError
            If the text was tokenized without its token table.
        """
        if text.tokens is None:
            raise ValueError("words are known only of texts that were tokenized with details")
        return units_among(text.tokens, self.pooled_tokens(text), unit)

    def pooled_tokens(self, text: EncodeInput) -> range:
        """Which tokens of a text pooling reads: all, or those behind the prompt."""
        spans = Spans.of([0], [text.num_tokens], [0 if self.pooling.include_prompt else text.prompt_length])
        return range(spans.starts[0], spans.stops[0])


def _true_numbers(
    asked: Sequence[int] | Literal["all"], count: int, what: str, param: str, *, is_list: bool = True
) -> tuple[int, ...]:
    """Resolve negative numbers and refuse what does not exist."""
    if asked == "all":
        return tuple(range(count))
    numbers = []
    for index, number in enumerate(asked):
        if not -count <= number < count:
            message = f"the model has {count} {what}: valid numbers are {-count} to {count - 1}, not {number}"
            place = f"{param}[{index}]" if is_list else param
            raise AttentionSelectionError(message, param=place, limit=count - 1, actual=number)
        numbers.append(number % count)
    if not numbers or len(set(numbers)) < len(numbers):
        fault = "names one twice" if numbers else "is empty"
        raise AttentionSelectionError(f"the list of {what} {fault}", param=param)
    return tuple(numbers)


def _check_widths(folder: ModelFolder, loaded: LoadedEncoder) -> None:
    """Refuse dense modules that do not take what stands before them."""
    width = loaded.encoder.config.hidden_size
    for dense in folder.dense:
        if dense.in_features != width:
            raise CheckpointError(
                f"{dense.folder / 'config.json'}: in_features is {dense.in_features}, and what comes in has {width}"
            )
        width = dense.out_features


@torch.inference_mode()
def _quantize(encoder: Encoder, tokenizer: Tokenizer) -> None:
    """Let an encoder read the calibration texts, then put its linear layers into bytes."""
    batches = calibration_batches(tokenizer, calibration_texts())
    ranges = observe_inputs(encoder, lambda: [encoder(batch) for batch in batches])
    quantize_linear_layers(encoder, ranges)

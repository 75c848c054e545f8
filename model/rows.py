"""From the hidden states of a batch to the rows of its texts: pooling, dense layers, and the heads of other models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from torch import Tensor

from model.batch import PackedBatch
from model.contract import EncodeInput, FloatArray, OutputSpec, Row, SparseVector
from model.heads import Classifier, Dense
from model.late_interaction import LateInteractionHead
from model.pooling import POOLING_FUNCTIONS, Pooling, Spans, finish
from model.sparse import Splade

HeadOutput = Literal["logits", "sparse_vector", "token_vectors"]
"""What heads give: the name of a field of OutputSpec, which asks for it, and of one of Row, which holds it."""

LACKING: Mapping[HeadOutput, str] = {
    "logits": "logits were asked for, and the model folder has no classification head that is run here",
    "sparse_vector": "sparse vectors were asked for, and the model folder is no SPLADE model",
    "token_vectors": "token vectors were asked for, and the model folder is no late interaction model",
}


@dataclass(frozen=True, slots=True)
class PackedStates:
    """What the encoder made of a batch, and what its texts asked for, all in packed order.

    Attributes
    ----------
    hidden_states : Tensor, shape (T, D), float
        Of the last layer.
    batch : PackedBatch
    inputs : sequence of B EncodeInput
    specs : sequence of B OutputSpec
    """

    hidden_states: Tensor
    batch: PackedBatch
    inputs: Sequence[EncodeInput]
    specs: Sequence[OutputSpec]

    def spans(self, texts: Sequence[int]) -> Spans:
        """Find all tokens of some texts."""
        lengths = [self.batch.lengths[text] for text in texts]
        return Spans.of([self.batch.starts[text] for text in texts], lengths, [0] * len(texts))

    def kept_places(self, texts: Sequence[int]) -> list[list[int]]:
        """Find the tokens of some texts that have a vector of their own."""
        places = []
        for text in texts:
            kept, start = self.inputs[text].kept, self.batch.starts[text]
            places.append([start + place for place in (range(self.batch.lengths[text]) if kept is None else kept)])
        return places

    def of(self, text: int) -> FloatArray:
        """Copy the states of one text's tokens: (L, D) float32."""
        start = self.batch.starts[text]
        return to_array(self.hidden_states[start : start + self.batch.lengths[text]])


Head = Callable[[PackedStates, Sequence[int]], Sequence[FloatArray | SparseVector]]
"""Gives some texts, by their places in packed order, what the model is there for; each in memory of its own."""


def make_heads(
    classifier: Classifier | None, splade: Splade | None, late_interaction: LateInteractionHead | None
) -> dict[HeadOutput, Head]:
    """Make the heads that a model has: logits (labels,), sparse vectors, vectors of tokens (vectors, dimensions)."""
    heads: dict[HeadOutput, Head] = {}
    if classifier is not None:
        heads["logits"] = partial(_logits, classifier)
    if splade is not None:
        heads["sparse_vector"] = lambda states, texts: splade.vectors(states.hidden_states, states.spans(texts))
    if late_interaction is not None:
        heads["token_vectors"] = lambda states, texts: late_interaction.vectors(
            states.hidden_states, states.kept_places(texts)
        )
    return heads


def _logits(classifier: Classifier, states: PackedStates, texts: Sequence[int]) -> list[FloatArray]:
    pooled = POOLING_FUNCTIONS[classifier.config.pooling](states.hidden_states, states.spans(texts))
    return [logits.copy() for logits in to_array(classifier(pooled))]


class RowMaker:
    """What follows the encoder of one model.

    Parameters
    ----------
    pooling : Pooling
    dense : sequence of Dense
        On the pooled vector, in the order in which they run.
    heads : mapping of HeadOutput to Head
        Those that the model has.
    """

    def __init__(self, pooling: Pooling, dense: Sequence[Dense], heads: Mapping[HeadOutput, Head]) -> None:
        self._pooling = pooling
        self._dense = tuple(dense)
        self._heads = heads

    def rows(self, states: PackedStates) -> list[Row]:
        """Make of each text what it asked for, but for its maps.

        Returns
        -------
        list of B Row
            In packed order.

        Raises
        ------
        ValueError
            If a text asks for what only a head gives that the model does not have.
        """
        specs = states.specs
        rows = [Row(token_states=states.of(text) if spec.token_states else None) for text, spec in enumerate(specs)]
        self._embed(states, rows)
        for name, complaint in LACKING.items():
            asked = [text for text, spec in enumerate(specs) if getattr(spec, name)]
            if asked and name not in self._heads:
                raise ValueError(complaint)
            if asked:
                for text, found in zip(asked, self._heads[name](states, asked), strict=True):
                    setattr(rows[text], name, found)
        return rows

    def _embed(self, states: PackedStates, rows: Sequence[Row]) -> None:
        """Pool, apply the dense layers, cut and scale: of each text that asked the whole, or each of its chunks."""
        specs, starts, lengths = states.specs, states.batch.starts, states.batch.lengths
        kinds = {(spec.dimensions, spec.normalize) for spec in specs if spec.pooled}
        if not kinds:
            return
        prompts = [0 if self._pooling.include_prompt else text.prompt_length for text in states.inputs]
        parts = [
            (text, part)
            for text, spec in enumerate(specs)
            for part in (spec.chunks if spec.chunks is not None else (range(lengths[text]),))
        ]
        spans = Spans.of(
            [starts[text] + part.start for text, part in parts],
            [len(part) for _, part in parts],
            [max(0, prompts[text] - part.start) for text, part in parts],
        )
        pooled = POOLING_FUNCTIONS[self._pooling.mode](states.hidden_states, spans)
        for dense in self._dense:
            pooled = dense(pooled)
        firsts = np.cumsum([0, *(1 if spec.chunks is None else len(spec.chunks) for spec in specs)])
        for dimensions, normalize in kinds:
            finished = to_array(finish(pooled, dimensions=dimensions, normalize=normalize))
            for text, spec in enumerate(specs):
                if not spec.pooled or (spec.dimensions, spec.normalize) != (dimensions, normalize):
                    continue
                found = finished[firsts[text] : firsts[text + 1]]
                if spec.chunks is None:
                    rows[text].embedding = found[0].copy()
                else:
                    rows[text].chunks = found.copy()


def to_array(tensor: Tensor) -> FloatArray:
    """Copy a tensor to a float32 array of its own."""
    return np.array(tensor.detach().float().cpu().numpy())

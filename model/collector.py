"""Takes the maps of one text layer by layer, as the encoder gives them, and keeps only what was asked for.

Heads are reduced, special tokens left out, words merged and rows thinned out before a layer is kept; statistics and
rollout keep no map at all. So a text's answer is what its memory is, and one layer beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.attention import WantedMaps
from model.contract import AttentionSelection, FloatArray, SparseMaps, TextAttention, TokenTable
from model.head_statistics import head_statistics
from model.maps import (
    Units,
    hide,
    largest_weights,
    mean_of_pieces,
    membership,
    merge_words,
    reduce_heads,
    rollout_step,
    units_of,
)


class AttentionCollector:
    """Collects the attention of one text.

    Parameters
    ----------
    selection : AttentionSelection
    start, length : int
        Its tokens in the pack, L of them.
    table : TokenTable or None
        Needed where ``selection`` is about special tokens or words.
    device : torch.device
        Where the layers' maps will be.
    num_seen : int or None
        How many of the tokens are looked at; None = all.

    Raises
    ------
    ValueError
        If the table is needed and is not there.
    """

    def __init__(
        self,
        selection: AttentionSelection,
        start: int,
        length: int,
        table: TokenTable | None,
        device: torch.device,
        num_seen: int | None = None,
    ) -> None:
        if selection.needs_tables and table is None:
            raise ValueError("words and special tokens are known only of texts that were tokenized with details")
        self.selection = selection
        self._start, self._length, self._num_seen = start, length, num_seen
        self._shaper = _Shaper(selection, table, device)
        self._cls, self._separators = _roles(table.special) if table else (None, [])
        self._stats_kept = None
        if table is not None and selection.special != "keep":
            self._stats_kept = torch.tensor(
                [token for token, special in enumerate(table.special) if not special], device=device, dtype=torch.int64
            )
        num_units = length if self._shaper.units is None else self._shaper.units.num_units
        self._shape = len(selection.layers), selection.map_heads, num_units, num_units
        has_maps = selection.maps
        self._maps = torch.empty(self._shape) if has_maps and not selection.is_sparse else None
        self._kept_mass = torch.empty(self._shape[:3]) if has_maps and selection.special != "keep" else None
        self._sparse: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._stats: dict[str, FloatArray] = {}
        self._joint: Tensor | None = None

    def wanted(self, layer: int) -> WantedMaps:
        """Say which maps the layer shall give."""
        return WantedMaps(self._start, self._length, self.selection.heads_of(layer), self._num_seen)

    def take(self, layer: int, weights: Tensor) -> None:
        """Take a layer's maps.

        Parameters
        ----------
        layer : int
        weights : Tensor, shape (heads, L, L), float32
            Of ``selection.heads_of(layer)``. Not kept, and not changed.
        """
        selection = self.selection
        heads = selection.heads_of(layer)
        if layer in selection.layers and (selection.maps or selection.stats):
            own = weights if heads == selection.heads else weights[list(selection.heads)]
            place = selection.layers.index(layer)
            if selection.stats:
                self._describe(place, own)
            if selection.maps:
                self._keep(place, own)
        if selection.rollout is not None and layer in selection.rollout.layers:
            self._joint = rollout_step(self._joint, weights, selection.rollout.residual, selection.rollout.heads)

    def _describe(self, place: int, weights: Tensor) -> None:
        """Add a layer to the statistics."""
        found = head_statistics(weights, cls=self._cls, separators=self._separators, kept=self._stats_kept)
        for name, values in found.items():
            if name not in self._stats:
                self._stats[name] = np.empty((len(self.selection.layers), len(self.selection.heads)), np.float32)
            self._stats[name][place] = values.cpu().numpy()

    def _keep(self, place: int, weights: Tensor) -> None:
        """Keep what is asked of a layer's maps."""
        selection = self.selection
        if selection.reduce_heads is not None:
            weights = reduce_heads(weights, selection.reduce_heads)
        weights, mass = self._shaper.shape(weights)
        if self._kept_mass is not None and mass is not None:
            self._kept_mass[place] = mass
        if self._maps is not None:
            self._maps[place] = weights
        else:
            chosen = largest_weights(weights, selection.row_bound(weights.shape[-1]), selection.min_weight)
            row_sum = weights.sum(dim=-1, dtype=torch.float64).flatten()
            counts, index, weight, sums = (part.cpu() for part in (*chosen, row_sum))
            self._sparse[place] = counts, index.int(), weight, sums

    def finish(self) -> TextAttention:
        """Return what was collected; every array owns its memory."""
        rollout = rollout_mass = None
        if self._joint is not None:
            rollout, rollout_mass = self._shaper.shape(self._joint)
        return TextAttention(
            maps=_to_array(self._maps),
            sparse=self._join_rows() if self._sparse else None,
            kept_mass=_to_array(self._kept_mass),
            stats=self._stats or None,
            rollout=_to_array(rollout),
            rollout_kept_mass=_to_array(rollout_mass),
        )

    def _join_rows(self) -> SparseMaps:
        """Put the layers' sparse rows behind one another, in the asked order."""
        layers = [self._sparse[place] for place in range(len(self.selection.layers))]
        counts, index, weight, row_sum = (torch.cat(parts) for parts in zip(*layers, strict=True))
        row_start = np.concatenate([[0], counts.cumsum(0).numpy()]).astype(np.int32)
        return SparseMaps(self._shape, row_start, index.numpy(), weight.numpy(), row_sum.numpy())


class _Shaper:
    """Leaves out special tokens and merges words, always those of one text."""

    def __init__(self, selection: AttentionSelection, table: TokenTable | None, device: torch.device) -> None:
        self.units: Units | None = None
        self._kept = self._member_of = None
        self._renormalize = selection.special == "renormalize"
        if table is None or (selection.special == "keep" and selection.unit == "token"):
            return
        self.units = units_of(table, selection.unit, selection.special)
        if selection.special != "keep":
            self._kept = torch.tensor(self.units.kept, device=device, dtype=torch.int64)
        if selection.unit == "word":
            self._member_of = membership(self.units.members, self.units.num_units, device)

    def shape(self, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the maps in the units asked, (..., n, n), and the mass that each row kept, where any left."""
        mass = None
        if self._kept is not None:
            weights, mass = hide(weights, self._kept, renormalize=self._renormalize)
        if self._member_of is not None:
            weights = merge_words(weights, self._member_of)
            if mass is not None:
                mass = mass @ mean_of_pieces(self._member_of).T
        return weights, mass


def _roles(special: Sequence[bool]) -> tuple[int | None, list[int]]:
    """Tell the opening special token, if the template has one, from the others, which close and separate."""
    places = [token for token, is_special in enumerate(special) if is_special]
    if places and places[0] == 0:
        return 0, places[1:]
    return None, places


def _to_array(tensor: Tensor | None) -> FloatArray | None:
    """Return a tensor as an array of its own."""
    return None if tensor is None else tensor.contiguous().cpu().numpy()

"""How the encoder knows where a token stands: sinusoids, a learned table, rotation, or buckets of distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import EncoderConfig, RotaryConfig


def sinusoids(num_positions: int, width: int) -> Tensor:
    """Sines in the even columns, cosines in the odd ones, from wavelength 2 pi to 10,000 x 2 pi.

    Returns
    -------
    Tensor, shape (num_positions, width), float32

    References
    ----------
    Vaswani et al. 2017, section 3.5; ``positional_encoding`` in the second document of seeds/.
    """
    position = torch.arange(num_positions, device="cpu").unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2, device="cpu") * -(math.log(10_000.0) / width))
    table = torch.zeros(num_positions, width, device="cpu")
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: width // 2])
    return table


class PositionalEncoding(nn.Module):
    """A table with one row per position, added to the token embeddings: fixed sinusoids or learned.

    MPNet has both, a learned table here and :class:`RelativeBias` in every layer.

    Parameters
    ----------
    config : EncoderConfig
        With ``positions`` "sinusoidal", "learned" or "relative".
    width : int
        Width of a row.
    """

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        self.offset = config.position_offset
        num_rows = config.num_position_rows
        self.weight: Tensor
        if config.positions != "sinusoidal":
            self.weight = nn.Parameter(torch.empty(num_rows, width))
            nn.init.normal_(self.weight, std=0.02)
        else:
            self.register_buffer("weight", sinusoids(num_rows, width), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Look rows up: positions (T,) int -> (T, width)."""
        return F.embedding(positions + self.offset, self.weight)


def rotary_tables(positions: Tensor, head_size: int, rotary: RotaryConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles.

    Parameters
    ----------
    positions : Tensor, shape (T,), int
    head_size : int
        K.

    Returns
    -------
    tuple of Tensor, each shape (T, 1, R / 2), float32
        R = the rotated part of a head, ``fraction * K``.

    References
    ----------
    Su et al. 2021, equation 15.
    """
    rotated = int(head_size * rotary.fraction)
    exponents = torch.arange(0, rotated, 2, device=positions.device, dtype=torch.float32) / rotated
    frequencies = 1.0 / rotary.base**exponents
    angles = (positions.float() / rotary.scaling).unsqueeze(1) * frequencies  # (T, R / 2)
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool) -> Tensor:
    """Turn each pair of coordinates by its position's angle.

    Parameters
    ----------
    heads : Tensor, shape (T, H, K)
        Queries or keys.
    cosine, sine : Tensor, shape (T, 1, R / 2)
        From :func:`rotary_tables`.
    interleaved : bool
        Pairs are neighbours; otherwise they are half of R apart.

    Returns
    -------
    Tensor, shape (T, H, K), same dtype
        Coordinates from R on are left as they were. Computed in float32.
    """
    half = cosine.shape[-1]
    turned, kept = heads[..., : 2 * half].float(), heads[..., 2 * half :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    pair = (first * cosine - second * sine, second * cosine + first * sine)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((turned.to(heads.dtype), kept), dim=-1)


def relative_buckets(length: int, num_buckets: int, max_distance: int, device: torch.device | None = None) -> Tensor:
    """Sort every (query, key) distance into a bucket.

    Half of the buckets are for keys after the query, half for keys before it; within a half, distances up to a
    quarter of ``num_buckets`` have a bucket each, larger ones share buckets that widen logarithmically up to
    ``max_distance``.

    Returns
    -------
    Tensor, shape (L, L), int64

    References
    ----------
    Raffel et al. 2020 (T5), section 2.1; Song et al. 2020 (MPNet).
    """
    positions = torch.arange(length, device=device)
    distance = positions.unsqueeze(0) - positions.unsqueeze(1)  # (L, L) key - query
    half = num_buckets // 2
    exact = half // 2
    size = distance.abs()
    scale = (half - exact) / math.log(max_distance / exact)
    # clamp keeps log() away from 0; the result is only used where size >= exact
    widening = exact + (torch.log(size.clamp(min=1).float() / exact) * scale).long()
    bucket = torch.where(size < exact, size, widening.clamp(max=half - 1))
    return bucket + (distance > 0) * half


class RelativeBias(nn.Module):
    """A learned term per head and bucket of distance, added to the scores of every layer (MPNet).

    Parameters
    ----------
    config : EncoderConfig
        With ``positions`` "relative".
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.max_distance = config.relative_max_distance
        self.weight = nn.Parameter(torch.empty(config.relative_num_buckets, config.num_attention_heads))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, length: int) -> Tensor:
        """Return the bias for texts of up to ``length`` tokens: shape (H, L, L)."""
        buckets = relative_buckets(length, self.weight.shape[0], self.max_distance, self.weight.device)
        return F.embedding(buckets, self.weight).permute(2, 0, 1)  # (H, L, L)

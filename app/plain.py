"""What the compatible APIs ask for, in this server's own words: texts or token ids in, vectors or scores out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.errors import EmptyInputError, InvalidRequestError
from app.naming import Rename
from model.contract import EncodeInput
from model.output_types import OutputDtype
from model.tokenizer import Text, TokenIds
from model.truncation import Side

MAX_LIST_CHARACTERS = 2_000
"""Of a header: many clients and proxies take 8 kB of all headers together."""


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A request of a compatible API.

    Attributes
    ----------
    texts : sequence of str, (str, str) or list of int
        Pairs are for scores. Token ids are taken as they are: special tokens among them, no prompt before them.
    model : str or None
        None = the first one.
    prompt_name, prompt : str or None
        Put before each text; without either, the model's default prompt.
    truncate : bool
        Cut what is over the model's maximum; otherwise it is refused.
    side : "left" or "right"
        Where it is cut.
    normalize : bool
    dimensions : int or None
    output_dtype : OutputDtype
        Of the embeddings as they are sent.
    token_states : bool
        The last hidden state of each token, in place of one embedding.
    rename : Rename
        How the caller knows the texts, for errors.
    """

    texts: Sequence[Text | TokenIds]
    model: str | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    truncate: bool = True
    side: Side = "right"
    normalize: bool = True
    dimensions: int | None = None
    output_dtype: OutputDtype = "float32"
    token_states: bool = False
    rename: Rename = str


def check(request: PlainRequest) -> None:
    """Refuse what the compatible APIs refuse before any work is done on it.

    Raises
    ------
    EmptyInputError
        If there is no text, or one of them is empty; a pair where both its texts are.
    InvalidRequestError
        If a prompt is asked for before token ids.
    """
    if not request.texts:
        raise EmptyInputError("there must be at least one text", param="texts", limit=1, actual=0)
    for index, text in enumerate(request.texts):
        if not any(text) if isinstance(text, tuple) else not text:
            raise EmptyInputError("a text must not be empty", param=f"texts[{index}]", limit=1, actual=0)
        has_prompt = request.prompt_name is not None or request.prompt is not None
        if has_prompt and isinstance(text, list):
            name = "prompt_name" if request.prompt_name is not None else "prompt"
            raise InvalidRequestError("a prompt goes before a text, not before token ids", param=name)


def is_one(texts: str | Sequence[str | int | TokenIds]) -> bool:
    """Whether a field holds one text, not a list of them: a string, or a flat list of token ids."""
    return isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], int))


def as_list(texts: str | Sequence[str | int | TokenIds]) -> list[str | TokenIds]:
    """Return the texts of a field that may hold one."""
    if isinstance(texts, str):
        return [texts]
    ids = [item for item in texts if isinstance(item, int)]
    return [ids] if ids else [item for item in texts if not isinstance(item, int)]


def truncation_headers(inputs: Sequence[EncodeInput], query: EncodeInput | None = None) -> dict[str, str]:
    """Say which texts were cut, where an API's own answer has no place for it.

    Parameters
    ----------
    inputs : sequence of EncodeInput
    query : EncodeInput, optional
        What all of them were compared with: where it was cut, each of them counts as cut.

    Returns
    -------
    dict
        ``X-Truncated-Count``, always; ``X-Truncated-Texts`` where it is not 0: places from 0, in order, as ``0,3-5``.
        A list of more than 2,000 characters ends with ``...``.
    """
    all_cut = query is not None and query.is_truncated
    cut = [index for index, item in enumerate(inputs) if all_cut or item.is_truncated]
    headers = {"X-Truncated-Count": str(len(cut))}
    if cut:
        headers["X-Truncated-Texts"] = _ranges(cut)
    return headers


def _ranges(places: Sequence[int]) -> str:
    """Write ascending places as ``0,3-5``."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    written = ""
    for first, last in runs:
        run = str(first) if first == last else f"{first}-{last}"
        if len(written) + len(run) > MAX_LIST_CHARACTERS:
            return f"{written},..."
        written += f",{run}" if written else run
    return written

"""How the caller knows what an error names: inside, every text of a request is ``texts[3]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.errors import ServiceError
from model.errors import InputError

Rename = Callable[[str], str]
"""``texts`` and ``texts[3]`` as the caller knows them; any other name stays."""


@contextmanager
def naming(rename: Rename) -> Iterator[None]:
    """Name the field at fault as the caller knows it."""
    try:
        yield
    except (ServiceError, InputError) as error:
        if error.param is not None:
            error.param = rename(error.param)
        raise


def shifted(param: str, by: int) -> str:
    """Name a text of a stretch by its place in the whole request."""
    match = re.fullmatch(r"texts\[(\d+)\]", param)
    return param if match is None else f"texts[{by + int(match[1])}]"


def name_in_pairs(param: str) -> str:
    """Name a text of the flattened pairs as the caller knows it: ``texts[3]`` is ``pairs[1][1]``."""
    match = re.fullmatch(r"texts(?:\[(\d+)\])?", param)
    if match is None:
        return param
    if match[1] is None:
        return "pairs"
    pair, side = divmod(int(match[1]), 2)
    return f"pairs[{pair}][{side}]"


def named(field: str, *, is_list: bool) -> Rename:
    """Name texts by the field that they came in: ``texts[3]`` is ``input[3]``, or ``input`` where that is one text."""

    def rename(param: str) -> str:
        if param == "texts" or (param == "texts[0]" and not is_list):
            return field
        return field + param.removeprefix("texts") if param.startswith("texts[") else param

    return rename

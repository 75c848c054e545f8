"""Every error has its row in the table, and the docstring draws the whole tree."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import app.errors
from app.errors import ANSWERS, START_UP_ONLY, ServiceError
from model.errors import ModelError


def leaves(base: type[Exception]) -> Iterator[type[Exception]]:
    """Yield the classes of a tree that have no subclass."""
    subclasses = base.__subclasses__()
    for subclass in subclasses:
        yield from leaves(subclass)
    if not subclasses:
        yield base


def test_every_leaf_has_a_row() -> None:
    """Both trees end in classes that the table, or the start-up list, knows."""
    known = ANSWERS.keys() | START_UP_ONLY
    assert {*leaves(ServiceError), *leaves(ModelError)} == known


def test_codes_and_start_up_errors_are_distinct() -> None:
    """A code names one error, and no start-up error has a row."""
    codes = [answer.code for answer in ANSWERS.values()]
    assert len(codes) == len(set(codes))
    assert not ANSWERS.keys() & START_UP_ONLY


def test_the_docstring_draws_the_tree() -> None:
    """The picture at the top of the module shows every class of ours with its status."""
    picture = inspect.getdoc(app.errors) or ""
    for error_class in leaves(ServiceError):
        line = next(line for line in picture.splitlines() if f"─ {error_class.__name__} " in line)
        assert line.split(error_class.__name__)[1].split()[0] == str(ANSWERS[error_class].status)

"""The list of guards fits the code; whether tests miss them, ``python -m tests.mutation`` finds out."""

from __future__ import annotations

import ast

import pytest

from tests.mutation import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
def test_every_guard_is_where_it_is_looked_for(mutation: Mutation) -> None:
    """Each edit applies exactly once, changes the code, and what is left is Python; its tests are there."""
    source = (ROOT / mutation.module).read_text()
    changed = mutation.apply(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert (ROOT / mutation.tests).is_file()


def test_every_guard_has_a_name_of_its_own() -> None:
    """The table can be read, and a guard chosen by its name."""
    names = [mutation.guard for mutation in MUTATIONS]
    assert len(names) == len(set(names))
    assert max(map(len, names)) <= 42


def test_a_guard_that_has_moved_is_told() -> None:
    """An edit that fits nowhere, or twice, is refused with the guard and the file."""
    with pytest.raises(ValueError, match=r"a guard: found 2 times in app/batcher\.py"):
        Mutation("a guard", "app/batcher.py", "x", "y").apply("xx")

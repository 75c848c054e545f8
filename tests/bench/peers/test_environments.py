"""The environments of the peers."""

from __future__ import annotations

import re

import pytest

from bench.peers.__main__ import PEERS
from bench.peers.environments import read_versions, requirements_file


@pytest.mark.parametrize("peer", [*PEERS, "infinity"])
def test_every_package_of_a_peer_is_pinned_and_torch_is_not_among_them(peer: str) -> None:
    """A run can be repeated, and no requirement can bring a torch with CUDA in place of the one installed first."""
    lines = [line for line in requirements_file(peer).read_text().splitlines() if not line.lstrip().startswith("#")]
    assert all(re.match(r"[\w.-]+==[\w.+!]+( ;|$)", line) for line in lines)
    assert not [line for line in lines if re.match(r"(torch|torchvision|triton|nvidia\b.*)==", line)]
    assert read_versions(peer)["transformers"]

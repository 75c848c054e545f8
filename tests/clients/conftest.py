"""One server for all clients. Where they are not installed, these tests stay away."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.clients.answers import MODEL_NAME, PROMPTED
from tests.e2e.conftest import ROOT, Server, command
from tests.tiny import make_bert_folder

# The clients live in an environment of their own; elsewhere `-m clients` finds no test, which pytest calls a failure.
HAS_CLIENTS = find_spec("tritonclient") is not None
collect_ignore_glob = [] if HAS_CLIENTS else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Leave it to the clients to close their connections and to follow what their own dependencies deprecate."""
    if HAS_CLIENTS:
        for category in (DeprecationWarning, ResourceWarning):
            config.addinivalue_line("filterwarnings", f"ignore::{category.__name__}")  # while a test runs
            warnings.simplefilter("ignore", category)  # and afterwards


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of two models; the second is tiny, and has prompts."""
    folder = make_bert_folder(tmp_path_factory.mktemp("model") / PROMPTED, prompts={"query": "query: ", "passage": ""})
    models = ("--model", ROOT / "weights" / MODEL_NAME, "--model", folder)
    flags = ("--dtype", "float32", "--device", "cpu", "--port", 0)
    process = Server(tmp_path_factory.mktemp("server") / "log", command("serve", *models, *flags))
    yield process
    process.close()

"""Schemathesis reads /openapi.json and sends what it allows, and what it forbids."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import DEFAULT_MODEL, SERVER_PYTHON, Server

pytestmark = pytest.mark.fuzz

FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "180"))  # shared by all operations, and by what HEADERS ask for
SEED = int(os.environ.get("FUZZ_SEED", "20"))
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "unsupported_method",
    "allow_header_conformance",
)
# What else a request that the schema allows may meet: no schema knows which names, layers and lengths a model has.
CONFIGURATION = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 413, 422, 429]

# OpenAI has 400 where we have 422.
[[operations]]
include-tag = "OpenAI"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 413, 429]

# So has the Open Inference Protocol, and no schema says that shape and data agree. Under another name all is 404.
[[operations]]
include-tag = "Open Inference Protocol"
[operations.parameters]
"path.name" = "eyeline-base"
"path.version" = "1"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 413, 429]
"""
HEADERS = ("Accept: */*", "Accept: application/vnd.safetensors, application/x-npz;q=0.5")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default model and defaults everywhere else."""
    python = SERVER_PYTHON if SERVER_PYTHON.exists() else Path(sys.executable)
    flags = ("serve", "--port", "0", "--model", str(DEFAULT_MODEL), "--dtype", "float32")
    arguments = [str(python), "-m", "app.cli", *flags]
    server = Server(tmp_path_factory.mktemp("server") / "log", arguments)
    yield server
    server.close()


@pytest.mark.parametrize("header", HEADERS)
def test_the_server_does_as_its_schema_says(server: Server, tmp_path: Path, header: str) -> None:
    """No generated request, valid or not, meets an error of the server's, or an answer that is not documented; a
    failure prints the curl command that shows it. Afterwards nothing is in flight, and the log has no error.
    """
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    seconds = max(1, FUZZ_SECONDS // len(HEADERS))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run"]
    command += [f"{server.url}/openapi.json", "--header", header, "--checks", ",".join(CHECKS)]
    command += ["--phases", "examples,coverage,fuzzing", "--max-time", str(seconds), "--seed", str(SEED)]
    command += ["--continue-on-failure", "--no-shrink", "--generation-database", "none", "--no-color"]
    command += ["--request-timeout", "60", "--warnings", "off"]

    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=seconds + 300, check=False)

    assert run.returncode == 0, f"seed {SEED}\n{run.stdout}\n{run.stderr}"
    sent = re.search(r"(\d+) generated", run.stdout)
    assert sent is not None, run.stdout
    assert int(sent[1]) > 100, f"hardly anything was sent:\n{run.stdout}"
    assert server.process.poll() is None
    assert server.sample("eyeline_inflight_requests") == 1  # the one that asks
    assert [entry for entry in server.log_entries() if entry["level"] in ("error", "warning")] == []

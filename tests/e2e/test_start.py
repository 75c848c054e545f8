"""What the server needs to start, and what it says when it cannot."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL, PATIENCE_SECONDS, SERVER_PYTHON, StartServer, environment, run_command

pytestmark = pytest.mark.e2e

ORACLES = ("transformers", "sentence_transformers")
TEST_TOOLS = ("pytest", "httpx", "hypothesis")


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in the server's environment."""
    return subprocess.run(
        [str(SERVER_PYTHON), "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("package", [*ORACLES, *TEST_TOOLS])
def test_the_runtime_environment_is_only_that(package: str) -> None:
    """Neither the oracles nor the test tools are installed where the server runs."""
    done = python(f"import {package}")
    assert done.returncode == 1
    assert f"ModuleNotFoundError: No module named '{package}'" in done.stderr


LOADED = "import sys, atexit; atexit.register(lambda: print(*sorted({m.partition('.')[0] for m in sys.modules})))\n"


def test_a_running_server_has_loaded_no_oracle(start_server: StartServer) -> None:
    """After start, a request and a clean stop none of the oracles is among its modules; torch and tokenizers are."""
    code = f"{LOADED}import app.cli; sys.exit(app.cli.main(sys.argv[1:]))"
    server = start_server("--no-warmup", prefix=[str(SERVER_PYTHON), "-c", code])
    server.encode("hello", attention={})
    server.signal()
    assert server.wait() == 0
    assert server.process.stdout is not None
    loaded = server.process.stdout.read().split()
    assert {"torch", "tokenizers", "fastapi", "uvicorn"} <= set(loaded)
    assert not set(loaded) & {*ORACLES, *TEST_TOOLS}


def test_the_console_script_is_installed() -> None:
    """``eyeline`` is a command of the environment."""
    script = SERVER_PYTHON.with_name("eyeline")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stdout == run_command("--version").stdout


def test_the_log_is_json_from_the_first_line(start_server: StartServer) -> None:
    """Every line is one object with time, level and message; start and readiness are told."""
    server = start_server("--no-warmup")
    entries = server.log_entries()
    assert all({"time", "level", "logger", "message", "request_id"} <= entry.keys() for entry in entries)
    assert {"loaded all-MiniLM-L6-v2", "ready"} <= {entry["message"] for entry in entries}
    assert {entry["level"] for entry in entries} == {"info"}


def assert_one_sentence(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The exit code, and a last line that names what is wrong; no traceback anywhere."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("eyeline: ")
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["--port", "eighty"], {}, ["--port", "eighty"]),
        ([], {"EYELINE_PROT": "1"}, ["EYELINE_PROT", "EYELINE_PORT"]),
        ([], {"EYELINE_PORT": "tcp://1.2.3.4:80"}, ["EYELINE_PORT", "tcp://1.2.3.4:80", "Kubernetes", "--port"]),
        ([], {"EYELINE_DTYPE": "int7"}, ["EYELINE_DTYPE", "int7"]),
    ],
)
def test_bad_settings_are_one_sentence_and_2(arguments: list[str], environ: dict[str, str], words: list[str]) -> None:
    """The flag or variable, and what it should be."""
    done = run_command("serve", *arguments, environ=environ)
    assert_one_sentence(done, 2, *words)
    assert done.stderr.count("\n") == 1


def test_missing_weights_are_one_sentence_and_1(tmp_path: Path) -> None:
    """The folder that was looked for is named."""
    done = run_command("serve", "--weights-dir", tmp_path, "--model", "no-such-model", "--device", "cpu")
    assert_one_sentence(done, 1, str(tmp_path / "no-such-model"))


@pytest.fixture
def copied_model(tmp_path: Path) -> Iterator[Path]:
    """A copy of the default model that may be broken, without its list of checksums, as a download by hand has none."""
    folder = tmp_path / "copied"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("SHA256SUMS"))
    yield folder
    shutil.rmtree(folder)


def test_a_truncated_download_is_one_sentence_and_1(copied_model: Path) -> None:
    """A weights file that was not copied whole is told from a good one, and named."""
    with (copied_model / "model.safetensors").open("r+b") as file:
        file.truncate(40_000_000)
    done = run_command("serve", "--model", copied_model, "--device", "cpu", "--port", 0)
    assert_one_sentence(done, 1, "model.safetensors")


def test_a_missing_tensor_is_one_sentence_and_1(copied_model: Path) -> None:
    """A configuration with one layer more than the weights have: the missing tensor is named, nothing is made up."""
    config = json.loads((copied_model / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (copied_model / "config.json").write_text(json.dumps(config))
    done = run_command("serve", "--model", copied_model, "--device", "cpu", "--port", 0)
    assert_one_sentence(done, 1, "encoder.layer.6.")


def test_a_changed_file_is_one_sentence_and_1(copied_model: Path) -> None:
    """Where the folder has checksums, a file that was changed since is named."""
    shutil.copy(MODEL / "SHA256SUMS", copied_model)
    with (copied_model / "config.json").open("a") as file:
        file.write(" ")
    done = run_command("serve", "--model", copied_model, "--device", "cpu", "--port", 0)
    assert_one_sentence(done, 1, "config.json", "SHA256SUMS")


def test_a_port_in_use_is_1() -> None:
    """One sentence names the address, before a model is loaded; no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_command("serve", "--model", MODEL, "--device", "cpu", "--port", port, "--no-warmup")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines() == [f"eyeline: 127.0.0.1:{port} cannot be listened on: Address already in use"]


def test_info_of_the_default_model() -> None:
    """What make weights fetched is what it should be."""
    done = run_command("info", MODEL)
    described = json.loads(done.stdout)
    assert described["num_parameters"] == 22_565_376
    assert (described["dimensions"], described["max_length"], described["pooling"]) == (384, 256, "mean")


def test_serving_needs_no_network_and_no_home(start_server: StartServer, tmp_path: Path) -> None:
    """Nothing is fetched and nothing is written to a home folder."""
    home = tmp_path / "home"
    home.mkdir()
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    server = start_server("--no-warmup", environ={"HOME": str(home), **proxies})
    assert server.encode("hello")["num_tokens"] == [3]
    assert list(home.iterdir()) == []

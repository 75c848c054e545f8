"""A model folder is replaced under load: no request fails, none sees two models, memory comes back."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import DEFAULT_MODEL, PATIENCE_SECONDS, TEST_SCALE, Server, StartServer, command, wait_for

pytestmark = pytest.mark.e2e

OTHER_MODEL = DEFAULT_MODEL.with_name("eyeline-mini")
TEXTS = [f"{'the cat sat on the mat ' * (index % 5)}number {index}" for index in range(12)]
NUM_CALLERS = 8
NUM_FIRST_RELOADS = 4
"""So many fill what the C library keeps: two of each model."""
NUM_RELOADS = NUM_FIRST_RELOADS + min(40, int(4 * TEST_SCALE))
MEGABYTE = 1_000_000
MAX_GROWTH_BYTES = 60 * MEGABYTE
"""Since then: a server that holds on to every model grows by 170 MB with each reload, and one whose threads do not
share the C library's pools of memory has grown by 150 MB after twenty."""


@pytest.fixture
def served_folder(tmp_path: Path) -> Iterator[Path]:
    """A link that stands for the folder of one of two models; where it leads can be changed in one step."""
    link = tmp_path / "served"
    link.symlink_to(DEFAULT_MODEL)
    yield link
    link.unlink()


def lead_to(link: Path, folder: Path) -> None:
    """Let the link lead elsewhere: at no moment is it missing."""
    new = link.with_name("new")
    new.symlink_to(folder)
    os.replace(new, link)


def num_reloads(server: Server, result: str = "succeeded") -> float:
    """How many reloads have ended so."""
    return server.sample("eyeline_reloads_total", result=result)


def reload(server: Server, result: str = "succeeded") -> None:
    """Ask for a reload as an operator does, and wait for its end."""
    before = num_reloads(server, result)
    server.signal(signal.SIGHUP)
    wait_for(lambda: num_reloads(server, result) == before + 1, f"a reload that {result}")


def embeddings(answer: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vectors of an answer."""
    return np.array(answer["embeddings"], dtype=np.float32)


def test_a_reload_under_load_fails_nobody(start_server: StartServer, served_folder: Path) -> None:
    """Callers never pause while the folder is switched to and fro: each answer is 200 and wholly of one of the two
    models, an answer that began after a switch is of the new one, and memory comes back to what it was when
    both models had been there twice.
    """
    server = start_server("--model", f"m={served_folder}", "--weights-dir", served_folder.parent)
    by_folder = {DEFAULT_MODEL: embeddings(server.encode(TEXTS, model="m"))}
    lead_to(served_folder, OTHER_MODEL)
    reload(server)
    by_folder[OTHER_MODEL] = embeddings(server.encode(TEXTS, model="m"))
    assert np.abs(by_folder[DEFAULT_MODEL] - by_folder[OTHER_MODEL]).max() > 0.01
    seen = {DEFAULT_MODEL: 0, OTHER_MODEL: 0}
    failed: list[Any] = []

    async def caller(http: httpx.AsyncClient, done: asyncio.Event) -> None:
        while not done.is_set():
            response = await http.post("/encode", json={"texts": TEXTS, "model": "m"})
            if response.status_code != 200:
                failed.append((response.status_code, response.text))
                return
            found = embeddings(response.json())
            owners = [folder for folder, known in by_folder.items() if np.allclose(found, known, atol=1e-4)]
            if len(owners) != 1:
                failed.append("an answer of neither model, or of both")
                return
            seen[owners[0]] += 1

    def has_seen(folder: Path, enough: int) -> bool:
        return bool(failed) or seen[folder] >= enough

    async def operator(http: httpx.AsyncClient, done: asyncio.Event) -> list[float]:
        resident = []
        for number in range(NUM_RELOADS):
            folder = (DEFAULT_MODEL, OTHER_MODEL)[number % 2]
            lead_to(served_folder, folder)
            await asyncio.to_thread(reload, server)
            response = await http.post("/encode", json={"texts": TEXTS, "model": "m"})
            np.testing.assert_allclose(embeddings(response.json()), by_folder[folder], atol=1e-4)
            enough = seen[folder] + NUM_CALLERS
            await asyncio.to_thread(wait_for, partial(has_seen, folder, enough), "answers of the new model")
            resident.append(await asyncio.to_thread(server.sample, "process_resident_memory_bytes"))
        done.set()
        return resident

    async def everyone() -> list[float]:
        done = asyncio.Event()
        limits = httpx.Limits(max_connections=NUM_CALLERS + 1)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=PATIENCE_SECONDS) as http:
            callers = [asyncio.create_task(caller(http, done)) for _ in range(NUM_CALLERS)]
            resident = await operator(http, done)
            await asyncio.gather(*callers)
            return resident

    resident = asyncio.run(everyone())
    assert failed == []
    assert min(seen.values()) >= NUM_CALLERS
    assert (
        server.sample("eyeline_requests_total", route="/encode", status="200") == sum(seen.values()) + 2 + NUM_RELOADS
    )
    assert server.sample("eyeline_queue_texts", model="m") == 0
    print(f"{NUM_RELOADS} reloads, {sum(seen.values())} requests; resident MB {[round(r / 1e6) for r in resident]}")
    limit = max(resident[:NUM_FIRST_RELOADS]) + MAX_GROWTH_BYTES
    # An old model goes, and its memory is given back, a while after the last answer of it.
    wait_for(lambda: server.sample("process_resident_memory_bytes") < limit, "the return of the old models' memory")


def test_a_broken_folder_leaves_the_old_model(start_server: StartServer, tmp_path: Path) -> None:
    """A folder that is overwritten with rubbish in place: the old model answers as before, the log names file and
    reason, and when the folder is mended the next signal takes it.
    """
    folder = tmp_path / "mine"
    shutil.copytree(OTHER_MODEL, folder, ignore=shutil.ignore_patterns("SHA256SUMS"))
    weights = (folder / "model.safetensors").read_bytes()
    server = start_server("--no-warmup", "--model", f"mine={folder}")
    before = server.encode(TEXTS, model="mine")["embeddings"]
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    reload(server, "failed")
    assert server.encode(TEXTS, model="mine")["embeddings"] == before
    [line] = [entry for entry in server.log_entries() if entry["message"].startswith("reload failed")]
    assert line["level"] == "error"
    assert "model.safetensors" in line["message"]
    (folder / "model.safetensors").write_bytes(weights)
    reload(server)
    assert server.encode(TEXTS, model="mine")["embeddings"] == before


TERMINAL = """
import os, sys
os.setsid()
os.open(sys.argv[1], os.O_RDWR)  # the first terminal that the leader of a session opens is the session's
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_closed_terminal_stops_the_server(start_server: StartServer) -> None:
    """SIGHUP from a terminal that is gone is no wish for a reload: the server ends, cleanly."""
    ours, theirs = pty.openpty()
    server = start_server("--no-warmup", prefix=[sys.executable, "-c", TERMINAL, os.ttyname(theirs), *command()])
    server.signal(signal.SIGHUP)
    wait_for(lambda: num_reloads(server) == 1, "a reload")  # the terminal is still there
    os.close(theirs)
    os.close(ours)
    assert server.wait() == 0
    assert "stopping" in server.log

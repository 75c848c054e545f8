"""A Ray cluster of two nodes on this machine, and what runs on it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.e2e.conftest import ROOT, environment

RAY_PYTHON = Path(os.environ.get("RAY_PYTHON", ROOT / ".venv-ray/bin/python"))
PATIENCE_SECONDS = 900.0  # a cluster starts in twenty seconds; only a crushed machine, or one that hangs, needs so long
START_TRIES = 5  # Ray gives a node's own process thirty seconds, whatever else the machine does
OBJECT_STORE_BYTES = 100_000_000  # nothing of ours travels through it

RAY_ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    # A machine that does ten other things starts a process in a minute, not in a second.
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_failure_threshold": "60",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    # A proxy sends to its own node's replicas first; here there is one proxy, and both replicas must answer.
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} did not happen in {PATIENCE_SECONDS:g} seconds")
        time.sleep(0.1)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """Two nodes of two CPUs each, Ray's own processes and nothing else.

    Parameters
    ----------
    folder : Path
        Where Ray keeps its sockets and logs; short, since a socket's path may have 107 bytes. Every process of the
        cluster is known by it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self._started: list[subprocess.Popen[bytes]] = []
        port = self.address.rpartition(":")[2]
        head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
        for _ in range(START_TRIES):
            failure = self._start(*head) or self._start(f"--address={self.address}")
            if failure is None:
                return
            self._end_processes()
        raise RuntimeError(failure)

    def _start(self, *flags: str) -> str | None:
        """Start a node; why it did not, if so."""
        sizes = ("--num-cpus=2", f"--object-store-memory={OBJECT_STORE_BYTES}", "--node-ip-address=127.0.0.1")
        command = [str(RAY_PYTHON), "-m", "ray.scripts.scripts", "start", *flags, *sizes, "--disable-usage-stats"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(RAY_ENVIRONMENT), capture_output=True, text=True, check=False
        )
        return None if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    def run(
        self, log: Path, *arguments: object, environ: Mapping[str, str] | None = None, folder: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """Start a driver in a folder: Python with these arguments, its output in ``log``."""
        variables = environment({**RAY_ENVIRONMENT, "RAY_ADDRESS": self.address, **(environ or {})})
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(RAY_PYTHON), *map(str, arguments)], cwd=folder, env=variables, stdout=output, stderr=output
            )
        self._started.append(process)
        return process

    def processes(self, title: str) -> list[int]:
        """Process ids of the cluster's workers of that title; Ray gives each one such as ``ray::ServeReplica:...``."""
        return [pid for pid, command in self._processes().items() if command.startswith(title)]

    def _processes(self) -> dict[int, str]:
        """Every process of this cluster, and its command: those that name its folder or address, and their children.

        Workers name neither: Ray writes their titles over their arguments and variables.
        """
        parents: dict[int, int] = {}
        commands: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                status = (entry / "stat").read_text()
                parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        own = {pid for pid, command in commands.items() if str(self.folder) in command or self.address in command}
        while more := {pid for pid, parent in parents.items() if parent in own} - own:
            own |= more
        return {pid: commands[pid] for pid in own if pid in commands and pid != os.getpid()}

    def close(self) -> None:
        """End every process of it; ``ray stop`` would end those of every other cluster on the machine, too."""
        for process in self._started:
            process.kill()
            process.wait()
        self._end_processes()

    def _end_processes(self) -> None:
        while left := self._processes():  # a node may start another process while it is ended
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start a cluster, and end it."""
    assert RAY_PYTHON.exists(), f"{RAY_PYTHON} is missing: make check-ray makes the environment"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = None
        try:
            cluster = Cluster(Path(folder))
            yield cluster
        finally:
            if cluster is not None:
                cluster.close()


def last_lines(log: Path, count: int = 40) -> str:
    """The end of a log, without colours, for a failure's message."""
    return "\n".join(re.sub(r"\x1b\[\d+m", "", log.read_text(errors="replace")).splitlines()[-count:])

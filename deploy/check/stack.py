"""A running compose project as the checks see it: its containers, its published ports, and callers that load it.

Needs nothing but Python and the command ``docker``, so that it runs wherever the project can be deployed.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 120.0
"""For what takes seconds: only a server that hangs, or a crushed machine, needs so long."""


class CheckError(Exception):
    """What was to be seen was not; the message says what was seen instead."""


def expect(condition: bool, otherwise: object) -> None:
    """Go on only if a condition holds."""
    if not condition:
        raise CheckError(str(otherwise))


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return it with its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise CheckError(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done


def docker(*arguments: str) -> str:
    """Run ``docker`` and return what it prints."""
    return run("docker", *arguments).stdout.strip()


def wait_for(what: str, condition: Callable[[], bool]) -> float:
    """Poll until a condition holds, and return the seconds that took."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() > begin + PATIENCE_SECONDS:
            raise CheckError(f"{what} did not happen in {PATIENCE_SECONDS:g} seconds")
        time.sleep(0.05)
    return time.monotonic() - begin


class Container:
    """One container, by its id."""

    def __init__(self, identity: str) -> None:
        self.identity = identity

    def inspect(self, template: str) -> str:
        """Return a part of ``docker inspect``, such as ``.State.Status``."""
        return docker("inspect", "--format", f"{{{{{template}}}}}", self.identity)

    def run(self, *command: str) -> str:
        """Run a command inside."""
        return docker("exec", self.identity, *command)

    def python(self, code: str) -> str:
        """Run Python inside, in the server's environment."""
        return self.run("python", "-c", code)

    def sample(self, name: str, **labels: str) -> float:
        """Sum the samples of one metric of the server inside that have these labels; 0 if there is none."""
        page = self.python(
            "import urllib.request as u; "
            "print(u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8080/metrics').read().decode())"
        )
        return sum_samples(page, name, labels)


def sum_samples(page: str, name: str, labels: dict[str, str]) -> float:
    """Sum the samples of a page of metrics that have a name and labels."""
    total = 0.0
    for line in page.splitlines():
        sample, _, value = line.rpartition(" ")
        found, _, rest = sample.partition("{")
        if found == name and all(f'{label}="{text}"' in rest for label, text in labels.items()):
            total += float(value)
    return total


class Stack:
    """A compose project.

    Parameters
    ----------
    command : list of str
        ``docker compose`` with the options that name the project and its files.
    """

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def with_files(self, *files: str) -> Stack:
        """Return the same project with more compose files."""
        return Stack([*self.command, *(part for file in files for part in ("-f", file))])

    @property
    def options(self) -> list[str]:
        """What follows ``docker compose`` in the command."""
        return self.command[2:]

    def __call__(self, *arguments: str) -> str:
        """Run ``docker compose``, and return what it prints."""
        return run(*self.command, *arguments).stdout.strip()

    def up(self, *arguments: str) -> None:
        """Start services from images that are here, and wait until they are healthy."""
        self("up", "--detach", "--no-build", "--pull", "never", "--wait", "--wait-timeout", "180", *arguments)

    def containers(self, service: str) -> list[Container]:
        """Return the containers of a service, running or not, in their order."""
        found = [Container(identity) for identity in self("ps", "--all", "--quiet", service).split()]
        return sorted(found, key=lambda one: one.inspect(".Name"))

    def one(self, service: str) -> Container:
        """Return the only container of a service."""
        (container,) = self.containers(service)
        return container


@dataclass(frozen=True, slots=True)
class Reply:
    """What a caller got.

    Attributes
    ----------
    begin : float
        When it was asked for, by the monotonic clock.
    status : int or None
        None: no answer came.
    body : bytes
        The answer, or what went wrong.
    """

    begin: float
    status: int | None
    body: bytes

    def json(self) -> Any:
        """Parse the body."""
        return json.loads(self.body)


def call(port: int, path: str, body: object = None) -> Reply:
    """Send one request to a published port, and take what comes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        return send(connection, path, body)
    finally:
        connection.close()


def send(connection: http.client.HTTPConnection, path: str, body: object = None) -> Reply:
    """Send one request over a connection, and take what comes."""
    begin = time.monotonic()
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return Reply(begin, response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return Reply(begin, None, repr(error).encode())


def query(port: int, expression: str) -> list[dict[str, Any]]:
    """Ask a Prometheus; an empty list while it does not answer."""
    reply = call(port, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    if reply.status != 200:
        return []
    found: list[dict[str, Any]] = reply.json()["data"]["result"]
    return found


@contextmanager
def callers(port: int, number: int) -> Iterator[list[Reply]]:
    """Let callers encode sentences, each one after another over a connection of its own, until the block ends.

    Yields
    ------
    list of Reply
        Grows while they run, and is complete after the block.
    """
    replies: list[Reply] = []
    stop = threading.Event()

    def encode(caller: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        while not stop.is_set():
            replies.append(send(connection, "/encode", {"texts": [f"Caller {caller} sends its sentence again."]}))
        connection.close()

    threads = [threading.Thread(target=encode, args=(caller,)) for caller in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield replies
    finally:
        stop.set()
        for thread in threads:
            thread.join()

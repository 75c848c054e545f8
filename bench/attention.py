"""What attention costs: requests with maps or statistics, next to the same request without, on one running server.

One client sends one text at a time over one connection. The kinds of request take turns, round after round, so that a
machine whose speed drifts slows all of them; what counts is the ratio of medians. Time is from sending a request to the
last byte of its answer, which is not parsed.

Then what others pay: a client of short texts beside another that sends the longest without pause, plain or with maps.
A short request waits for the long one that is running, so with maps it may wait longer by what those cost, no more.

A model that has 512 positions and reads fewer tokens is served as a copy that reads them. Run it with ``make bench`` on
a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.longer_model import longer_model
from bench.server import running_server
from bench.text_sets import read_texts

LENGTHS = (32, 128, 512)
"""Tokens of a text, special tokens included."""

SHORT = "A short text of a caller who wants no maps."
TURN_SECONDS = 2.0
"""So long short texts are sent beside one kind of long ones, before the next kind has its turn."""

MIN_ROUNDS = 5
"""A median of fewer says little, however slow the machine."""

TOO_LARGE = 413


@dataclass(frozen=True, slots=True)
class Ask:
    """One kind of request: what it wants beside the embedding, and in which form."""

    name: str
    attention: dict[str, Any] | None = None
    accept: str = "application/json"


SAFETENSORS = "application/vnd.safetensors"
PLAIN = Ask("no attention")
ASKS = (
    PLAIN,
    Ask("statistics, all layers, no maps", {"layers": "all", "maps": False, "stats": True}),
    Ask("one layer, safetensors float16", {"layers": [-1], "dtype": "float16"}, SAFETENSORS),
    Ask("all layers, safetensors float16", {"layers": "all", "dtype": "float16"}, SAFETENSORS),
    Ask("one layer, JSON list", {"layers": [-1], "encoding": "list"}),
)


class Client:
    """One connection that stays open."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def send(self, path: str, body: object = None, accept: str = "application/json") -> tuple[int, bytes]:
        """Ask once; returns status and answer."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept, "Content-Type": "application/json"}
        self._connection.request("GET" if content is None else "POST", path, content, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def read(self, path: str, body: object = None) -> dict[str, Any]:
        """Ask once, for JSON."""
        status, answer = self.send(path, body)
        if status != http.HTTPStatus.OK:
            raise SystemExit(f"{path} answered {status}: {answer.decode()}")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed


@dataclass(slots=True)
class Cost:
    """What one kind of request took at one length."""

    num_tokens: int
    ask: Ask
    body: dict[str, Any]
    seconds: list[float] = field(default_factory=list)
    num_bytes: int = 0
    is_refused: bool = False

    def run(self, client: Client, *, is_counted: bool) -> None:
        """Send the request once; an answer that would be too large is noted, and not asked for again."""
        if self.is_refused:
            return
        started = time.perf_counter()
        status, answer = client.send("/encode", self.body, self.ask.accept)
        seconds = time.perf_counter() - started
        if status == TOO_LARGE:
            self.is_refused = True
        elif status != http.HTTPStatus.OK:
            raise SystemExit(f"{self.ask.name} at {self.num_tokens} tokens answered {status}: {answer.decode()}")
        elif is_counted:
            self.seconds.append(seconds)
            self.num_bytes = len(answer)


def text_of(client: Client, num_tokens: int) -> str:
    """Cut a run of words from the benchmark's sentences that the server reads as exactly so many tokens."""
    words = " ".join(read_texts("25")).split()

    def count(start: int, num_words: int) -> int:
        text = " ".join(words[start : start + num_words])
        tokens: int = client.read("/tokenize", {"texts": text})["texts"][0]["num_tokens_total"]
        return tokens

    for start in range(0, len(words) - num_tokens, num_tokens):
        # As many words as tokens are enough, or more; halve until the number of words that fits is found.
        fits, too_many = 0, num_tokens + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if count(start, middle) <= num_tokens:
                fits = middle
            else:
                too_many = middle
        if count(start, fits) == num_tokens:
            return " ".join(words[start : start + fits])
    raise SystemExit(f"no run of words is {num_tokens} tokens for this model")


def measure(client: Client, lengths: Sequence[int], seconds: float) -> list[Cost]:
    """Send every kind of request at every length, in turn, for about so many seconds."""
    costs = []
    for num_tokens in lengths:
        text = text_of(client, num_tokens)
        for ask in ASKS:
            wanted = {} if ask.attention is None else {"attention": ask.attention}
            costs.append(Cost(num_tokens, ask, {"texts": text, **wanted}))
    for cost in costs:
        cost.run(client, is_counted=False)
    num_rounds, started = 0, time.perf_counter()
    while num_rounds < MIN_ROUNDS or time.perf_counter() - started < seconds:
        for cost in costs:
            cost.run(client, is_counted=True)
        num_rounds += 1
    return costs


@dataclass(slots=True)
class Beside:
    """What short requests took beside one kind of long ones, and what those took."""

    name: str
    body: dict[str, Any] | None
    accept: str = "application/json"
    short_seconds: list[float] = field(default_factory=list)
    long_seconds: list[float] = field(default_factory=list)

    def run(self, address: str, client: Client) -> None:
        """Send short requests for a turn, while another connection sends long ones."""
        is_over = threading.Event()

        def flood() -> None:
            with closing(Client(address)) as other:
                while self.body is not None and not is_over.is_set():
                    started = time.perf_counter()
                    status, _ = other.send("/encode", self.body, self.accept)
                    if status != http.HTTPStatus.OK:
                        raise SystemExit(f"{self.name} answered {status}")
                    self.long_seconds.append(time.perf_counter() - started)

        with ThreadPoolExecutor(1) as thread:
            flooding = thread.submit(flood)
            begun = time.perf_counter()
            try:
                while time.perf_counter() - begun < TURN_SECONDS:
                    started = time.perf_counter()
                    client.read("/encode", {"texts": SHORT})
                    self.short_seconds.append(time.perf_counter() - started)
            finally:
                is_over.set()
            flooding.result()  # or its failure


def measure_others(address: str, client: Client, num_tokens: int, seconds: float) -> list[Beside]:
    """Send short requests beside nothing, beside plain long ones, and beside long ones with maps, in turn."""
    text = text_of(client, num_tokens)
    kinds = [Beside("nothing", None), Beside("no attention", {"texts": text})]
    for ask in ASKS[1:4]:
        kinds.append(Beside(ask.name, {"texts": text, "attention": ask.attention}, ask.accept))
    started = time.perf_counter()
    while not kinds[0].short_seconds or time.perf_counter() - started < seconds:
        for kind in kinds:
            kind.run(address, client)
    return kinds


def report_others(kinds: list[Beside], num_tokens: int) -> dict[str, object]:
    """Print what each kind makes short requests wait, next to what it costs itself."""
    print(f"\nshort requests beside a client of {num_tokens} tokens; + is what attention adds, to it and to others")
    print(f"{'long requests':38}{'long ms':>9}{'+':>8}{'short ms':>10}{'+':>8}")
    figures: dict[str, object] = {}
    plain: tuple[float, float] | None = None
    for kind in kinds:
        short = statistics.median(kind.short_seconds) * 1000
        long = statistics.median(kind.long_seconds) * 1000 if kind.long_seconds else None
        figures[kind.name] = {"long_ms": long, "short_ms": short}
        if long is None:
            print(f"  {kind.name:36}{'':17}{short:10.1f}")
            continue
        plain = plain or (long, short)
        print(f"  {kind.name:36}{long:9.1f}{long - plain[0]:8.1f}{short:10.1f}{short - plain[1]:8.1f}")
    return figures


def main() -> None:
    """Print milliseconds, the ratio to the request without attention, and the bytes of each answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seconds", type=float, default=60, help="measure so long, but five rounds at least")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = str(longer_model(Path(arguments.model), Path(name)))
        with running_server(model, arguments.dtype) as address, closing(Client(address)) as client:
            longest = client.read("/info")["max_input_length"]
            lengths = sorted({min(length, longest) for length in LENGTHS})
            costs = measure(client, lengths, arguments.seconds)
            others = measure_others(address, client, lengths[-1], arguments.seconds / 2)
    figures: dict[str, object] = {**report(costs, longest), "others": report_others(others, lengths[-1])}
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def report(costs: list[Cost], longest: int) -> dict[str, dict[str, object]]:
    """Print the table; returns its figures."""
    plain = {cost.num_tokens: statistics.median(cost.seconds) for cost in costs if cost.ask is PLAIN}
    print(f"one client, one text a request, {len(costs[0].seconds)} rounds, medians")
    if longest < max(LENGTHS):
        print(f"this model reads {longest} tokens at most")
    figures: dict[str, dict[str, object]] = {}
    for num_tokens in plain:
        print(f"{f'{num_tokens} tokens':38}{'ms':>9}{'ratio':>8}{'bytes':>12}")
        rows = figures[str(num_tokens)] = {}
        for cost in costs:
            if cost.num_tokens != num_tokens:
                continue
            if cost.is_refused:
                print(f"  {cost.ask.name:36}        -  refused with {TOO_LARGE}: over the default limits")
                rows[cost.ask.name] = None
                continue
            median = statistics.median(cost.seconds)
            ratio = median / plain[num_tokens]
            print(f"  {cost.ask.name:36}{median * 1000:9.1f}{ratio:8.2f}{cost.num_bytes:12,}")
            rows[cost.ask.name] = {"ms": median * 1000, "ratio": ratio, "bytes": cost.num_bytes}
    return figures


if __name__ == "__main__":
    main()

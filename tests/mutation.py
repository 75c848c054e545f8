"""Takes each guard of the queue, the worker and the watchdog away, one at a time, and sees whether a test notices.

``python -m tests.mutation`` prints a table of guards and of the tests that fail without them, and exits with 1 if none
misses a guard. A guard that no test misses is not tested, and will be lost. A few seconds each; words of a name
choose some: ``python -m tests.mutation memory``.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("app", "eyeline", "model", "tests", "pyproject.toml")
BATCHER, WORKER, WATCHDOG, BUDGET = "app/batcher.py", "app/worker.py", "app/watchdog.py", "app/budget.py"
FAILED = re.compile(r"^(?:FAILED|ERROR) tests/app/test_(\S+)", re.MULTILINE)
PATIENCE_SECONDS = 900.0

LIBRARIES = ("torch", "fastapi_offline", "httpx", "hypothesis", "pydantic_settings", "safetensors.numpy", "tokenizers")
"""Loaded once, as each run begins with a copy of this process: importing them takes longer than most tests."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One guard, and the edit that takes it away.

    Attributes
    ----------
    guard : str
        What the code does before the edit.
    module : str
        The file; its own tests are run.
    old, new : str
        ``old`` is in the file exactly once.
    """

    guard: str
    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """Return the source without the guard."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self.guard}: found {source.count(self.old)} times in {self.module}, not once")
        return source.replace(self.old, self.new)

    @property
    def tests(self) -> str:
        """The file with the tests of the module."""
        return f"tests/app/test_{Path(self.module).name}"


MUTATIONS = (
    # --- who is let in
    Mutation("a full queue refuses", BATCHER, "if waiting + new > limit:", "if False:"),
    Mutation("too large for the queue is not 'full'", BATCHER, "            if new > limit:", "            if False:"),
    Mutation("a draining queue refuses", BATCHER, "        if self._is_draining:", "        if False:"),
    Mutation("a hung worker refuses", BATCHER, "        if self._worker.is_hung:", "        if False:"),
    Mutation(
        "Retry-After is the time to drain",
        BATCHER,
        "        retry_after_seconds = self._queue_tokens / self._tokens_per_second\n        if",
        "        retry_after_seconds = 1.0\n        if",
    ),
    Mutation("a small batch hardly moves the rate", BATCHER, "* min(1.0, tokens / self._limits.batch_tokens)", ""),
    Mutation(
        "refusals are counted",
        BATCHER,
        "        self._observer.rejected(ANSWERS[type(error)].code)\n",
        "",
    ),
    # --- who waits
    Mutation(
        "a caller that leaves frees its place",
        BATCHER,
        "            self._dequeue(texts)  # of",
        "            pass  # of",
    ),
    Mutation("texts of callers that left are counted", BATCHER, "self._observer.cancelled(request.", "int(request."),
    Mutation("nothing is kept of a request", BATCHER, "            self._requests.discard(request)\n", ""),
    Mutation(
        "the gauges move at enqueue",
        BATCHER,
        "context=Context())\n        self._observer.queue_changed(",
        "context=Context())\n        (lambda *_: None)(",
    ),
    Mutation(
        "the gauges move at dequeue",
        BATCHER,
        "for text in waiting), -1)\n            self._observer.queue_changed(",
        "for text in waiting), -1)\n            (lambda *_: None)(",
    ),
    Mutation(
        "draining waits for everybody", BATCHER, "            await asyncio.wait([self._task])", "            pass"
    ),
    Mutation(
        "whoever is failed is told",
        BATCHER,
        "                request.fail(make_error())",
        "                make_error()",
    ),
    Mutation(
        "who waits when the grace ends is told",
        BATCHER,
        "        self._fail_all(lambda: self._refusal(stopped_too_soon()))\n",
        "",
    ),
    Mutation(
        "a bug of ours leaves nobody waiting",
        BATCHER,
        '                request.fail(InferenceError("the batch could not be run"))',
        "                pass",
    ),
    # --- what is cut
    Mutation("a batch is cut when the worker is free", BATCHER, "async with self._worker.turn:", "if True:"),
    Mutation(
        "who has left is not run",
        BATCHER,
        "        waiting = [text for text in oldest if not text.request.is_done]\n",
        "        waiting = oldest\n",
    ),
    Mutation(
        "no work after the deadline",
        BATCHER,
        "        self._expire(self._requests)\n",
        "",
    ),
    Mutation(
        "who was overtaken is next", BATCHER, "self._oldest_is_due = chosen[0] != 0", "self._oldest_is_due = False"
    ),
    Mutation(
        "a choice takes no longer for a long queue", BATCHER, "islice(self._queue, MAX_CANDIDATES)", "self._queue"
    ),
    Mutation("batches keep to the budgets", BATCHER, "*self._budgets(), oldest", "10**9, 10**9, oldest"),
    Mutation(
        "batches are smaller after a shortage", BATCHER, "        share = self._share.now()\n", "        share = 1.0\n"
    ),
    # --- what has run
    Mutation("rows are counted before delivery", BATCHER, "        if len(rows) != len(inputs):", "        if False:"),
    Mutation("what is not finite is withheld", BATCHER, "            if not is_finite:", "            if False:"),
    Mutation("rows that are not finite are counted", BATCHER, "self._observer.rows_not_finite(num_spoilt)", "pass"),
    Mutation("they are worth a check", BATCHER, "            self._num_faults += num_spoilt\n", ""),
    Mutation(
        "rows go only to who still waits",
        BATCHER,
        "            if text.request.is_done:\n                continue\n",
        "",
    ),
    Mutation(
        "a failing batch fails alone",
        BATCHER,
        "        except Exception as error:\n            # Whatever",
        "        except ArithmeticError as error:\n            # Whatever",
    ),
    Mutation(
        "it is run again text by text",
        BATCHER,
        "                await self._run_batch([text])",
        '                text.request.fail(InferenceError("all of them"))',
    ),
    Mutation(
        "a text alone is not run twice",
        BATCHER,
        "            request.fail(error if known else",
        "            await self._worker.run(self._run_checked, [batch[0].input], [batch[0].spec])\n"
        "            request.fail(error if known else",
    ),
    Mutation(
        "nor one that nobody wants any more",
        BATCHER,
        "for text in texts if not text.request.is_done]",
        "for text in texts]",
    ),
    Mutation(
        "nor one that is too late by then",
        BATCHER,
        "        self._expire({text.request for text in texts})\n",
        "",
    ),
    Mutation("what the model refuses is passed on", BATCHER, "isinstance(error, (InputError, ServiceError))", "False"),
    Mutation(
        "a batch without memory is halved",
        BATCHER,
        "        except MemoryError:\n            await self._run_halves(batch)\n",
        "",
    ),
    Mutation("later batches are halved, too", BATCHER, "        self._share.shrink(self._share_of(batch))\n", ""),
    Mutation("shortages of memory are counted", BATCHER, "        self._observer.out_of_memory()\n", ""),
    # --- the budget
    Mutation("the budget comes back", BUDGET, "self._clock() >= self._recovers_at", "False"),
    Mutation("the budget never vanishes", BUDGET, "max(MIN_SHARE, min(", "max(0.0, min("),
    Mutation("a shortage never raises the budget", BUDGET, "min(self.now(), failed / 2)", "failed / 2"),
    # --- the worker
    Mutation(
        "nothing but errors leaves the thread",
        WORKER,
        "        raise RuntimeError(f",
        "        raise error or RuntimeError(f",
    ),
    Mutation(
        "who waits for a dead thread is told", WORKER, "                lost.set_result(None)", "                pass"
    ),
    Mutation("a closed thread is called by nobody", WORKER, "        if self._is_closed:\n", "        if False:\n"),
    Mutation("the end does not wait for ever", WORKER, "self._thread.join(timeout_seconds)", "self._thread.join()"),
    # --- the watchdog
    Mutation("a dead worker is replaced", WATCHDOG, "        self._worker.restart()\n", ""),
    Mutation(
        "a stopped process is no hang", WATCHDOG, "min(now - self._looked_at, LONGEST_STEP)", "now - self._looked_at"
    ),
    Mutation("one call's time counts", WATCHDOG, "if call is None or call != self._call:", "if call is None:"),
    Mutation(
        "a slow machine is no hang", WATCHDOG, "max(self._hang_seconds, *full_batches, 0.0)", "self._hang_seconds"
    ),
    Mutation("warming up is no hang", WATCHDOG, "(SLOW_FACTOR if self._worker.is_slow else 1)", "1"),
    Mutation(
        "a starved call is no hang",
        WATCHDOG,
        "0.0 if has_worked else self._idle_seconds + step",
        "self._idle_seconds + step",
    ),
    Mutation("a call that turns in a circle hangs", WATCHDOG, " or self._call_seconds >= WORKING_FACTOR * longest", ""),
    Mutation("a verdict is taken back", WATCHDOG, '                self._state.end_fault("worker_hung")\n', ""),
    Mutation("nobody waits for a hung worker", WATCHDOG, "            batcher.fail_as_hung()", "            pass"),
    Mutation("a hung process ends", WATCHDOG, "            self._state.end_process_if_ours()", "            pass"),
    Mutation("it has a last chance", WATCHDOG, "seconds + LAST_CHANCE_SECONDS", "seconds"),
    Mutation("an odd text is no fault of the server", WATCHDOG, "        if broken:\n", "        if True:\n"),
    Mutation("a fault is checked until it is gone", WATCHDOG, " or self._state.faults:", ":"),
    Mutation("checks do not pile up", WATCHDOG, "if self._checking is None or self._checking.done():", "if True:"),
)


def run_tests(folder: Path, tests: str) -> tuple[bool, list[str]]:
    """Run one file of tests in a copy of the project; returns whether all passed, and which did not."""
    output = folder / "output.txt"
    process = multiprocessing.get_context("fork").Process(target=_run_pytest, args=(folder, tests, output))
    process.start()
    process.join(PATIENCE_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return False, ["nothing ends"]
    failed = FAILED.findall(output.read_text())
    if process.exitcode and not failed:
        raise RuntimeError(f"the tests cannot be run: {output.read_text()[-3000:]}")
    return not failed, failed


def _run_pytest(folder: Path, tests: str, output: Path) -> NoReturn:
    """Run pytest in a process that has loaded the libraries already, but nothing of the project."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    sys.dont_write_bytecode = True
    sys.path[:] = [str(folder), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for module in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
        del sys.modules[module]
    loaded_already = "ignore::pytest.PytestAssertRewriteWarning"  # of libraries that are plugins as well
    sys.exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-n0", "-W", loaded_already, tests])))


def main(words: list[str]) -> int:
    """Try the mutations whose guard holds all the words, or all of them; returns 1 if one survives."""
    chosen = [mutation for mutation in MUTATIONS if all(word in mutation.guard for word in words)]
    for library in LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, folder / part)
        for tests in sorted({mutation.tests for mutation in chosen}):
            passed, failed = run_tests(folder, tests)
            if not passed:
                print(f"{tests} fails as it is: {failed}")
                return 1
        num_survivors = sum(_try(mutation, folder) for mutation in chosen)
    print(f"{len(chosen)} guards, {num_survivors} that no test misses")
    return 1 if num_survivors else 0


def _try(mutation: Mutation, folder: Path) -> bool:
    """Take a guard away in the copy, run the tests, put it back; returns whether no test noticed."""
    path = folder / mutation.module
    source = path.read_text()
    started = time.perf_counter()
    path.write_text(mutation.apply(source))
    try:
        survived, failed = run_tests(folder, mutation.tests)
    finally:
        path.write_text(source)
    noticed = "SURVIVED" if survived else failed[0].split(" ")[0]
    print(f"{mutation.guard:42} {noticed:80} {time.perf_counter() - started:5.0f} s", flush=True)
    return survived


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

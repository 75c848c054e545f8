"""One library in one number format, in a process of its own, that encodes when it is told to.

So none profits from what another did to the allocator or the thread pools, each may live in an environment of its own,
and they can take turns. The process reads lines and answers each with one; ``python -m bench.contender --help`` names
what it wants.

====================  ==============================================================
line                  answer
====================  ==============================================================
(start)               ``ready``, or ``unavailable REASON`` and the end
``prepare SET FILE``  ``prepared SETTINGS``: the texts were encoded once, FILE holds
                      their embeddings
``run SET``           ``seconds NUMBER``: all texts of the set were encoded
====================  ==============================================================
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from bench.libraries import LIBRARIES, Prepared, UnavailableError, load_library
from bench.text_sets import NUM_TEXTS, read_texts


class Contender:
    """The other end: starts the process, and speaks to it.

    Parameters
    ----------
    library, dtype, model : str
    python : str or Path
        The interpreter of the library's environment.
    threads : int
    num_texts : int
        Of each set.

    Raises
    ------
    UnavailableError
        If the library cannot be had in this format, with its own reason.
    """

    def __init__(
        self,
        library: str,
        dtype: str,
        model: str,
        *,
        python: str | Path = sys.executable,
        threads: int,
        num_texts: int = NUM_TEXTS,
    ) -> None:
        self.library, self.dtype = library, dtype
        command = [str(python), "-m", "bench.contender", library, "--dtype", dtype, "--model", model]
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until close
        self._process = subprocess.Popen(
            [*command, "--threads", str(threads), "--texts", str(num_texts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(threads),
        )
        self._answer("ready")

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.library} {self.dtype}"

    def prepare(self, text_set: str, file: Path) -> str:
        """Choose settings for a set, and encode it once into ``file``; returns the settings."""
        return self._ask(f"prepare {text_set} {file}", "prepared")

    def run(self, text_set: str) -> float:
        """Encode a set that was prepared; returns the seconds it took."""
        return float(self._ask(f"run {text_set}", "seconds"))

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):
            self._process.communicate(timeout=60)
        self._errors.close()

    def _ask(self, line: str, word: str) -> str:
        with suppress(BrokenPipeError):  # it has ended: the answer says how
            print(line, file=self._process.stdin, flush=True)
        return self._answer(word)

    def _answer(self, word: str) -> str:
        """Read lines up to the one that begins with ``word``; return what follows it."""
        for line in self._process.stdout or ():
            if line.startswith("unavailable "):
                self.close()
                raise UnavailableError(line.removeprefix("unavailable").strip())
            if line.split(maxsplit=1)[:1] == [word]:
                return line.removeprefix(word).strip()
        self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().strip().rpartition("\n")[2]
        raise UnavailableError(f"it ended with status {self._process.returncode}: {last}")


def environment(threads: int) -> dict[str, str]:
    """Give what a process that is measured gets: so many threads, no network, and none of Eyeline's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EYELINE_")}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return kept | offline | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parents[1])}


def main() -> None:
    """Answer the lines on standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=NUM_TEXTS)
    arguments = parser.parse_args()
    try:
        prepare = load_library(arguments.library, arguments.model, arguments.dtype, arguments.threads)
    except UnavailableError as error:
        print(f"unavailable {' '.join(str(error).split())}", flush=True)
        return
    print("ready", flush=True)
    prepared: dict[str, Prepared] = {}
    for line in sys.stdin:
        verb, text_set, *files = line.split(maxsplit=2)
        if verb == "prepare":
            prepared[text_set] = prepare(read_texts(text_set, arguments.texts))
            embeddings = prepared[text_set].run()
            if embeddings is not None:
                np.save(files[0].strip(), embeddings)
            print(f"prepared {prepared[text_set].settings}", flush=True)
        else:
            started = time.perf_counter()
            prepared[text_set].run()
            print(f"seconds {time.perf_counter() - started}", flush=True)


if __name__ == "__main__":
    main()

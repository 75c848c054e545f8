"""Model folders that nobody means well with: a child process makes them, loads each, and says what came of it.

``python -m tests.model.broken_folders FOLDER SEED COUNT`` writes a JSON line a folder. Memory is bounded by the
process's own limit and time by an alarm, so that a folder that takes too much of either ends the process: its name,
written before it is loaded, is then the last that was said.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import resource
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from model.embedder import Embedder
from model.errors import CheckpointError, PairError
from tests.model.folders import (
    CONFIG,
    bert_tensors,
    write_bert,
    write_dense,
    write_json,
    write_modules,
    write_splade,
    write_tensors,
)
from tests.model.formats.test_distilbert import RAW as DISTILBERT
from tests.model.formats.test_electra import RAW as ELECTRA
from tests.model.formats.test_modernbert import RAW as MODERNBERT
from tests.model.formats.test_mpnet import RAW as MPNET
from tests.model.formats.test_nomic import AUTHORS, TRANSFORMERS
from tests.model.formats.test_roberta import RAW as ROBERTA
from tests.model.formats.test_seeds import RAW as SEEDS

MORE_BYTES = 512 * 1024 * 1024
"""Of address space, above what the process has once PyTorch is loaded."""
ALARM_SECONDS = 120
"""For one folder, on a machine that is busy; the processor's own time is bounded by the test."""

Breaking = Callable[[Path, random.Random], str]
"""Breaks a whole folder, and says how."""

NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 10**9, -(10**9), 2**63, 10**30, 1e30, 1e308, float("nan"), float("inf")),
    *(10**400, -(10**400)),  # whole numbers of which no float can be made
    *(float("-inf"), "", "x", "x" * 100_000, "\0", "\ud800", "../../etc", "/dev/zero", "/etc/passwd", "..", "a" * 300),
    *([], {}, [[]], [None], {"": {}}, ["x"], [1, 2, 3], {"0": "a"}, "null", "\U0001f600", "bert", "gelu"),
]
"""Values that fields of a file may be given."""


def families() -> list[dict[str, Any]]:
    """A ``config.json`` of every family; but for BERT's, its tensors are not there."""
    named = (("distilbert", DISTILBERT), ("electra", ELECTRA), ("modernbert", MODERNBERT), ("mpnet", MPNET))
    more = (("nomic_bert", AUTHORS), ("nomic_bert", TRANSFORMERS), ("roberta", ROBERTA), ("xlm-roberta", ROBERTA))
    seeds = (("seed-0", SEEDS), ("seed-2", SEEDS))
    return [{"model_type": kind, **raw} for kind, raw in (*named, *more, *seeds)]


# ---- whole folders


def whole(folder: Path, kind: str) -> Path:
    """Write a folder that loads, with one kind of file that others have not."""
    write_bert(folder)
    if kind == "dense":
        write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
        write_dense(folder / "2_Dense", {"linear.weight": torch.ones(6, 16), "linear.bias": torch.ones(6)})
    elif kind == "sharded":
        tensors = bert_tensors()
        halves = [dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])]
        names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        for name, half in zip(names, halves, strict=True):
            write_tensors(folder / name, half)
        weight_map = {key: name for name, half in zip(names, halves, strict=True) for key in half}
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors").unlink()
    elif kind == "classifier":
        head = {"pooler.dense": (16, 16), "classifier": (2, 16)}
        tensors = bert_tensors() | {f"{name}.weight": torch.ones(shape) for name, shape in head.items()}
        tensors |= {f"{name}.bias": torch.ones(shape[0]) for name, shape in head.items()}
        write_tensors(folder / "model.safetensors", tensors)
        named = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
        write_json(folder / "config.json", {**CONFIG, **named})
    elif kind == "vocab":
        pieces = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        (folder / "vocab.txt").write_text("\n".join(pieces))
        (folder / "tokenizer.json").unlink()
        write_json(folder / "tokenizer_config.json", {"do_lower_case": True, "cls_token": {"content": "[CLS]"}})
    elif kind == "prompts":
        prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
        write_json(folder / "config_sentence_transformers.json", prompts)
        write_json(folder / "tokenizer_config.json", {"model_max_length": 40})
        (folder / "sentence_bert_config.json").unlink()
    elif kind == "sums":
        digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        (folder / "SHA256SUMS").write_text(f"{digest}  config.json\n")
    elif kind == "sparse":
        write_splade(folder)
    return folder


KINDS = ("plain", "dense", "sharded", "classifier", "vocab", "prompts", "sums", "sparse")


# ---- ways to break one


def files_of(folder: Path, ending: str = "") -> list[Path]:
    """The files of a folder, in an order that does not depend on the machine."""
    return sorted(path for path in folder.rglob(f"*{ending}") if path.is_file())


def flip_bits(folder: Path, draw: random.Random) -> str:
    """Turn a few bits of a file over."""
    file = draw.choice(files_of(folder))
    content = bytearray(file.read_bytes())
    # most of a file of tensors is numbers: the head is where the structure is
    where = min(len(content), draw.choice((64, 4_096, len(content))))
    for _ in range(draw.choice((1, 1, 3, 30))):
        content[draw.randrange(where)] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return f"bits of {file.name}"


def cut(folder: Path, draw: random.Random) -> str:
    """Cut a file off, or leave nothing of it."""
    file = draw.choice(files_of(folder))
    content = file.read_bytes()
    file.write_bytes(content[: draw.choice((0, 1, 7, 8, 9, draw.randrange(len(content)), len(content) - 1))])
    return f"{file.name} cut"


def lengthen(folder: Path, draw: random.Random) -> str:
    """Put something behind a file, or before it."""
    file, more = draw.choice(files_of(folder)), draw.randbytes(draw.choice((1, 8, 5_000)))
    content = file.read_bytes()
    file.write_bytes(more + content if draw.random() < 0.3 else content + more)
    return f"{file.name} lengthened"


def swap(folder: Path, draw: random.Random) -> str:
    """Give a file the content of another one."""
    one, other = draw.choice(files_of(folder)), draw.choice(files_of(folder))
    one.write_bytes(other.read_bytes())
    return f"{one.name} is {other.name}"


def remove(folder: Path, draw: random.Random) -> str:
    """Take a file away, or put a folder in its place."""
    file = draw.choice(files_of(folder))
    file.unlink()
    if draw.random() < 0.5:
        file.mkdir()
    return f"{file.name} gone"


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value, with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def spoil(value: Any, draw: random.Random) -> str:
    """Change one place of a JSON value."""
    found = list(places(value))
    if not found:
        return "nothing"
    shallow = [place for place in found if place[0] is value]
    container, key = draw.choice(shallow if draw.random() < 0.6 else found)
    if draw.random() < 0.15:
        del container[key]
        return f"without {key!r}"
    container[key] = draw.choice(NASTY)
    return f"{key!r} = {str(container[key])[:40]!r}"


def change_json(folder: Path, draw: random.Random) -> str:
    """Change a place or two of a JSON file."""
    file = draw.choice(files_of(folder, ".json"))
    content = json.loads(file.read_text())
    changes = [spoil(content, draw) for _ in range(draw.choice((1, 1, 2)))]
    file.write_text(json.dumps(content))
    return f"{file.name}: {', '.join(changes)}"


def change_additions(folder: Path, draw: random.Random) -> str:
    """Change a place of what tokenizer.json puts around every text, which is little of that file."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return change_json(folder, draw)
    content = json.loads(file.read_text())
    change = spoil(content["post_processor"], draw)
    file.write_text(json.dumps(content))
    return f"post_processor: {change}"


def change_family(folder: Path, draw: random.Random) -> str:
    """Take another family's config.json, with a place changed."""
    config = dict(draw.choice(families()))
    change = spoil(config, draw)
    (folder / "config.json").write_text(json.dumps(config))
    return f"{config.get('model_type')!s:.40}: {change}"


def replace_json(folder: Path, draw: random.Random) -> str:
    """Put another JSON text in a file's place."""
    file = draw.choice(files_of(folder, ".json"))
    texts = {
        "deep list": "[" * 100_000 + "]" * 100_000,
        "deep object": '{"a":' * 100_000 + "1" + "}" * 100_000,
        "half deep": '{"type":' * 900 + "1" + "}" * 900,
        "a number of 10,000 digits": f'{{"hidden_size": {"7" * 10_000}}}',
        "no object": draw.choice(("[]", "null", "1", '"x"', "", " ", "{", "\ufeff{}", "{}{}", "[{}]")),
        "twice": '{"model_type": "bert", "model_type": 5}',
    }
    name = draw.choice(list(texts))
    file.write_text(texts[name])
    return f"{file.name}: {name}"


def change_header(folder: Path, draw: random.Random) -> str:
    """Change the head of a file of tensors: its length, or a place of its JSON."""
    file = draw.choice(files_of(folder, ".safetensors"))
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    if draw.random() < 0.3:
        lengths = (0, 1, length - 1, length + 1, len(content), 100_000_000, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
        other = draw.choice(lengths)
        file.write_bytes(struct.pack("<Q", other) + content[8:])
        return f"{file.name}: a head of {other}"
    header = json.loads(content[8 : 8 + length])
    name = draw.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    field = draw.choice(("dtype", "shape", "data_offsets", "any"))
    if field == "dtype":
        entry["dtype"] = draw.choice(("F64", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "X", 5))
    elif field == "shape":
        shapes: tuple[Any, ...] = ([], [0], [2**40, 2**40], [2**63], [-1], [1] * 5_000, [16, 16], None, "x")
        entry["shape"] = draw.choice(shapes)
    elif field == "data_offsets":
        offsets: tuple[Any, ...] = ([0, 0], [0, 2**63], [2**64 - 1, 2**64 - 1], [10, 0], [0, 64], [], [-1, 5], None)
        entry["data_offsets"] = draw.choice(offsets)
    else:
        spoil(header, draw)
    packed = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(packed)) + packed + content[8 + length :])
    return f"{file.name}: {field} of {name[-30:]}"


def link(folder: Path, draw: random.Random) -> str:
    """Put a link, a device or a pipe in a file's place."""
    file = draw.choice(files_of(folder))
    file.unlink()
    target = draw.choice(
        ("/etc/passwd", "/dev/zero", "/dev/urandom", "/dev/null", "/proc/self/mem", "..", "loop", "fifo")
    )
    if target == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to(file.name if target == "loop" else target)
    return f"{file.name} -> {target}"


def name_outside(folder: Path, draw: random.Random) -> str:
    """Name a file outside of the folder, where files are named."""
    outside = draw.choice(
        ("../..", "/etc", "/dev", "a/../../b", "/etc/passwd", "../x", "\0", "x" * 5_000, "./././..", 5)
    )
    content: Any
    file = draw.choice(("modules.json", "model.safetensors.index.json", "SHA256SUMS"))
    if file == "modules.json":
        kind = draw.choice(("Transformer", "Pooling", "Dense", "Normalize"))
        content = [{"idx": 0, "name": "0", "path": outside, "type": f"sentence_transformers.models.{kind}"}]
    elif file == "SHA256SUMS":
        (folder / file).write_text(f"{'0' * 64}  {outside}\n")
        return f"{file}: {str(outside)[:40]!r}"
    else:
        for tensors in files_of(folder, ".safetensors"):
            tensors.unlink()
        content = {"weight_map": {"embeddings.word_embeddings.weight": outside}}
    write_json(folder / file, content)
    return f"{file}: {str(outside)[:40]!r}"


def enlarge(folder: Path, draw: random.Random) -> str:
    """Say that there is very much of something."""
    config = json.loads((folder / "config.json").read_text())
    if draw.random() < 0.5:
        config = dict(draw.choice(families()))
    sizes = [key for key, value in config.items() if isinstance(value, int)]
    many = draw.sample(sizes, min(len(sizes), draw.choice((1, 1, 2, 5))))
    for key in many:
        config[key] = draw.choice((512, 4_096, 2**20, 2**24, 2**24 + 1, 10**9, 2**62, 10**100, 10**400))
    (folder / "config.json").write_text(json.dumps(config))
    return ", ".join(f"{key} = {str(config[key])[:20]}" for key in many)


def enlarge_vocabulary(folder: Path, draw: random.Random) -> str:
    """List many more tokens than there are rows, or give tokens odd numbers."""
    file = folder / "tokenizer.json"
    if not file.exists():
        (folder / "vocab.txt").write_text("\n".join(f"w{number}" for number in range(300_000)))
        return "vocab.txt of 300,000 words"
    content = json.loads(file.read_text())
    odd = draw.choice((2**31, 2**32 - 1, 2**32, -1, 10**20, 5))
    if draw.random() < 0.5:
        content["model"]["vocab"]["odd"] = odd
    else:
        content["added_tokens"].append({**content["added_tokens"][0], "id": odd, "content": "odd"})
    file.write_text(json.dumps(content))
    return f"a token's id is {odd}"


BREAKINGS: tuple[Breaking, ...] = (
    *(flip_bits, cut, lengthen, swap, remove, change_json, change_json, change_family, change_family, replace_json),
    *(change_additions, change_header, change_header, link, name_outside, enlarge, enlarge_vocabulary),
)


# ---- the child


def try_folder(folder: Path) -> tuple[str, str]:
    """Load a folder as the server does: what came of it, and what was said."""
    try:
        embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
        embedder.run(embedder.tokenizer.encode(["the cat sat."]), [embedder.own_output])
        with suppress(PairError):
            embedder.run(embedder.tokenizer.encode([("the cat", "a dog")]), [embedder.own_output])
    except CheckpointError as error:
        return "refused", str(error)
    except BaseException as error:  # a panic of a library written in Rust is no Exception
        return "escaped", f"{type(error).__module__}.{type(error).__name__}: {error}"
    return "loaded", ""


def address_space() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(root: Path, seed: int, count: int) -> None:
    """Break, load, and tell; one JSON line a folder."""
    logging.disable()
    for kind in KINDS:  # PyTorch takes what it takes at its first run, and each kind loads while it is whole
        outcome, said = try_folder(whole(root / kind, kind))
        print(json.dumps({"how": f"whole: {kind}", "outcome": outcome, "said": said, "seconds": 0}), flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + MORE_BYTES,) * 2)
    for number in range(seed, seed + count):
        draw = random.Random(number)
        kind, breaking = draw.choice(KINDS), draw.choice(BREAKINGS)
        folder = root / "broken"
        shutil.copytree(root / kind, folder)
        how = f"{number} {kind}: {breaking(folder, draw)}"
        print(how, file=sys.stderr, flush=True)
        started = time.process_time()
        signal.alarm(ALARM_SECONDS)
        outcome, said = try_folder(folder)
        signal.alarm(0)
        seconds = time.process_time() - started
        print(json.dumps({"how": how, "outcome": outcome, "said": said, "seconds": seconds}), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

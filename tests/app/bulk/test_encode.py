"""The bulk encoder from file to file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file, save_file

import app.bulk.window
from app.bulk.encode import Report, encode_file
from app.bulk.errors import BulkError, BulkStoppedError, BulkUsageError
from model.chunking import Chunking
from model.embedder import Embedder
from model.output_dtype import NUMPY_DTYPES, convert
from model.output_types import OutputDtype
from tests.app.bulk.jobs import LIMITS, RecordingWatcher, make_options
from tests.tiny import make_bert_folder

TEXTS = [f"the cat sat on mat {number} " + "a dog " * (7 * number % 11) for number in range(50)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A tiny model."""
    folder = make_bert_folder(tmp_path_factory.mktemp("model") / "tiny")
    return Embedder.load(folder, dtype="float32", device="cpu", threads=1)


@pytest.fixture(scope="module")
def expected(embedder: Embedder) -> Any:
    """What the library gives for TEXTS."""
    return embedder.encode(TEXTS)


Encode = Callable[..., Report]


@pytest.fixture
def encode(embedder: Embedder, tmp_path: Path) -> Encode:
    """Encode a file in the test's folder into another, in windows of 8 texts."""

    def call(source: str | None, output: str, watcher: Any = None, stdin: bytes = b"", **changes: Any) -> Report:
        path = None if source is None else tmp_path / source
        options = make_options(path, tmp_path / output, **{"window_texts": 8, **changes})
        return encode_file(options, embedder, LIMITS, watcher or RecordingWatcher(), io.BytesIO(stdin))

    return call


def write_lines(path: Path, texts: list[str]) -> None:
    """Write plain text."""
    path.write_text("".join(f"{text}\n" for text in texts))


def test_from_every_format_to_every_format(encode: Encode, tmp_path: Path, expected: Any) -> None:
    """The same texts give the same rows, in order, whatever they came from and went to."""
    write_lines(tmp_path / "a.txt", TEXTS)
    write_lines(tmp_path / "a.csv", ["id,text", *(f'{number},"{text}"' for number, text in enumerate(TEXTS))])
    write_lines(tmp_path / "a.tsv", ["id\ttext", *(f"{number}\t{text}" for number, text in enumerate(TEXTS))])
    write_lines(tmp_path / "a.jsonl", [json.dumps({"id": number, "text": text}) for number, text in enumerate(TEXTS)])
    parquet.write_table(pa.table({"id": list(range(50)), "text": TEXTS}), tmp_path / "a.parquet")
    read: dict[str, Callable[[Path], Any]] = {
        "o.npy": np.load,
        "o.safetensors": lambda path: load_file(path)["embeddings"],
        "o.jsonl": lambda path: [json.loads(line)["embedding"] for line in path.read_text().splitlines()],
        "o.parquet": lambda path: parquet.read_table(path)["embedding"].to_pylist(),
    }
    for source in ("a.txt", "a.csv", "a.tsv", "a.jsonl", "a.parquet"):
        for output, load in read.items():
            report = encode(source, output, overwrite=True)
            assert (report.num_rows, report.num_encoded, report.dimensions) == (50, 50, 16)
            found = np.array(load(tmp_path / output), dtype=np.float32)
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"{source} {output}")


@pytest.mark.parametrize("output_dtype", NUMPY_DTYPES)
def test_every_number_type_in_every_format(
    encode: Encode, tmp_path: Path, expected: Any, output_dtype: OutputDtype
) -> None:
    """The file is of that type, and holds what the library's embeddings become; the statistics stay float32."""
    write_lines(tmp_path / "a.txt", TEXTS)
    read: dict[str, Callable[[Path], Any]] = {
        "o.npy": np.load,
        "o.safetensors": lambda path: load_file(path)["embeddings"],
        "o.jsonl": lambda path: [json.loads(line)["embedding"] for line in path.read_text().splitlines()],
        "o.parquet": lambda path: parquet.read_table(path)["embedding"].to_pylist(),
    }
    wanted = convert(expected, output_dtype)
    for output, load in read.items():
        encode("a.txt", output, output_dtype=output_dtype, attention_stats=True)
        found = load(tmp_path / output)
        # another batch moves a number by 1e-7, and then a rounding by a step
        near = 1 if output_dtype in {"int8", "uint8"} else 1e-3
        np.testing.assert_allclose(np.array(found, np.float32), wanted.astype(np.float32), atol=near, err_msg=output)
        if isinstance(found, np.ndarray):
            assert found.dtype == wanted.dtype
    value_type = parquet.read_schema(tmp_path / "o.parquet").field("embedding").type.value_type
    assert value_type.to_pandas_dtype() == wanted.dtype
    assert load_file(tmp_path / "o.safetensors")["attention_stats"].dtype == np.float32


def test_what_int8_clips_is_counted(tmp_path: Path) -> None:
    """Over all windows: a number a text, of a model with one outsized dimension; and the report says so."""
    folder = make_bert_folder(tmp_path / "wide", hidden_size=64)
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][5] = 100
    save_file(tensors, folder / "model.safetensors")
    write_lines(tmp_path / "a.txt", TEXTS)
    options = make_options(tmp_path / "a.txt", tmp_path / "o.npy", output_dtype="int8", window_texts=8)
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    report = encode_file(options, embedder, LIMITS, RecordingWatcher(), io.BytesIO())
    assert report.num_clipped == 50
    assert (np.load(tmp_path / "o.npy")[:, 5] == 127).all()


def test_a_type_that_does_not_fit_the_options_is_bad_usage(encode: Encode, tmp_path: Path) -> None:
    """Before anything is read or written."""
    write_lines(tmp_path / "a.txt", TEXTS)
    with pytest.raises(BulkUsageError, match="needs normalize true"):
        encode("a.txt", "o.npy", output_dtype="int8", normalize=False)
    with pytest.raises(BulkUsageError, match="12 dimensions are no multiple of 8"):
        encode("a.txt", "o.npy", output_dtype="binary", dimensions=12)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


LONG = "The cat sat. A dog barked! Hello world, a cat. " * 5


def chunk_records(path: Path) -> list[dict[str, Any]]:
    """The lines of an output."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("mode", ["separate", "late"])
def test_a_row_for_each_chunk(encode: Encode, embedder: Embedder, tmp_path: Path, mode: Any) -> None:
    """With its text's number (bad ones counted) and kept values, its stretch, and the embedding that /encode gives it:
    the same as the library's for the chunk as a text of its own.
    """
    texts = ["A dog.", LONG, "", "The cat sat. Hello world."]
    lines = [json.dumps({"id": f"n{number}", "text": text}) for number, text in enumerate(texts)]
    write_lines(tmp_path / "a.jsonl", ["{", *lines[:2], "{", *lines[2:]])
    chunking = Chunking("sentence", 1, mode=mode)
    report = encode("a.jsonl", "o.jsonl", chunking=chunking, keep=("id",), skip_bad=True, output_dtype="float16")
    records = chunk_records(tmp_path / "o.jsonl")
    assert [record["row"] for record in records] == [1, *[2] * 15, 4, 5, 5]
    assert [record["id"] for record in records] == ["n0", *["n1"] * 15, "n2", "n3", "n3"]
    assert [record["chunk"] for record in records] == [0, *range(15), 0, 0, 1]
    spelled = [texts[int(record["id"][1:])][record["start"] : record["end"]] for record in records]
    assert spelled == [
        "A dog.",
        *["The cat sat.", "A dog barked!", "Hello world, a cat."] * 5,
        "",
        "The cat sat.",
        "Hello world.",
    ]
    whole = embedder.encode(spelled)
    found = np.array([record["embedding"] for record in records])
    alone = [0, 16] if mode == "late" else list(range(19))  # texts of one chunk, or all
    np.testing.assert_allclose(found[alone], whole[alone], atol=1e-3)
    assert (report.num_rows, report.num_texts, report.num_skipped, report.num_truncated) == (19, 4, 2, 0)


@pytest.mark.parametrize("output", ["o.npy", "o.safetensors", "o.jsonl", "o.parquet"])
def test_a_stopped_run_of_chunks_is_taken_up(encode: Encode, tmp_path: Path, output: str) -> None:
    """To the byte what one run would have made: with the texts' numbers, which go on where they ended."""
    write_lines(tmp_path / "a.txt", [*TEXTS, LONG])
    how = {"chunking": Chunking("token", 4, 1, "late"), "window_texts": 16}
    whole = encode("a.txt", f"whole.{output.split('.')[1]}", **how)
    with pytest.raises(BulkStoppedError, match=r"stopped: \d+ rows are complete"):
        encode("a.txt", output, Stopping(20), **how)
    with pytest.raises(BulkError, match="was begun with another chunks"):
        encode("a.txt", output, chunking=Chunking("token", 4))
    watcher = RecordingWatcher()
    report = encode("a.txt", output, watcher, **how)
    assert watcher.begun_at is not None
    assert 0 < watcher.begun_at < 51
    assert watcher.begun_at + watcher.num_encoded == report.num_texts == 51
    assert 0 < report.num_encoded < report.num_rows == whole.num_rows
    made = {path.name.removeprefix("whole").removeprefix("o"): path for path in tmp_path.glob("o*.*")}
    assert made.keys() == {path.name.removeprefix("whole") for path in tmp_path.glob("whole*")}
    for ending, path in made.items():
        assert path.read_bytes() == (tmp_path / f"whole{ending}").read_bytes(), ending


def test_chunks_of_a_piece_are_numbered_as_in_the_file(encode: Encode, tmp_path: Path) -> None:
    """Whoever encodes which rows of it."""
    parquet.write_table(pa.table({"text": TEXTS[:6]}), tmp_path / "a.parquet")
    encode("a.parquet", "o.jsonl", chunking=Chunking("token", 30), rows=range(2, 5), window_texts=1)
    assert [record["row"] for record in chunk_records(tmp_path / "o.jsonl")] == [2, 3, 4]


def test_kept_columns_stand_beside_their_rows(encode: Encode, tmp_path: Path, expected: Any) -> None:
    """Ids and texts come out in the order and, from Parquet to Parquet, with the types they had."""
    parquet.write_table(pa.table({"id": pa.array(range(50), pa.int16()), "text": TEXTS}), tmp_path / "a.parquet")
    encode("a.parquet", "o.parquet", keep=("id", "text"), attention_stats=True)
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table.schema.field("id").type == pa.int16()
    assert table["id"].to_pylist() == list(range(50))
    assert table["text"].to_pylist() == TEXTS
    assert len(table["attention_stats"][0].as_py()["entropy"]) == 2
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), expected, atol=1e-5)


def test_standard_input(encode: Encode, tmp_path: Path, expected: Any) -> None:
    """A pipe will do."""
    encode(None, "o.npy", stdin="\n".join(TEXTS).encode())
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=1e-5)


def test_an_empty_file_gives_an_empty_output(encode: Encode, tmp_path: Path) -> None:
    """And no error: a pipeline may have nothing to do."""
    (tmp_path / "a.txt").write_bytes(b"")
    assert encode("a.txt", "o.npy").num_rows == 0
    assert np.load(tmp_path / "o.npy").shape == (0, 16)


def test_a_watcher_hears_of_everything(encode: Encode, tmp_path: Path) -> None:
    """Where it began, what has been read, what is encoded, what was left out."""
    write_lines(tmp_path / "a.jsonl", [*(json.dumps({"text": text}) for text in TEXTS[:10]), "{", '{"text": 3}'])
    watcher = RecordingWatcher()
    report = encode("a.jsonl", "o.npy", watcher, skip_bad=True)
    assert watcher.begun_at == 0
    assert watcher.num_encoded == report.num_rows == 10
    assert [count for count, _ in watcher.reads] == [8, 12, 12]
    assert watcher.reads[-1][1] == 1.0
    assert 0 < (watcher.reads[0][1] or 0) < 1
    name = tmp_path / "a.jsonl"
    assert watcher.messages == [
        f"{name}, line 11: the line is not JSON",
        f"{name}, line 12: field 'text' is a number, not a string",
    ]
    assert report.num_skipped == 2


def test_a_bad_line_stops_the_run_and_skip_bad_goes_on(encode: Encode, tmp_path: Path, expected: Any) -> None:
    """One sentence with file and line; the windows before it are complete, and stay so."""
    lines = [text.encode() for text in TEXTS]
    lines.insert(20, b"\xff")
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    with pytest.raises(BulkError) as caught:
        encode("a.txt", "o.npy")
    assert str(caught.value) == f"{tmp_path / 'a.txt'}, line 21: byte 1 of the line is not UTF-8"
    assert caught.value.exit_code == 1
    assert np.load(tmp_path / "o.npy.part").shape == (16, 16)
    report = encode("a.txt", "o.npy", skip_bad=True)
    assert (report.num_rows, report.num_encoded, report.num_skipped) == (50, 34, 1)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=1e-5)


def test_a_text_over_the_length_is_bad_without_truncation(encode: Encode, tmp_path: Path) -> None:
    """With truncation it is counted; without, it is named."""
    write_lines(tmp_path / "a.txt", ["a", "the cat " * 40])
    assert encode("a.txt", "cut.npy").num_truncated == 1
    with pytest.raises(BulkError, match=r"a\.txt, line 2: the text has 82 tokens, the model reads 32"):
        encode("a.txt", "o.npy", truncate=False)
    assert encode("a.txt", "o.npy", truncate=False, skip_bad=True).num_skipped == 1


class Stopping(RecordingWatcher):
    """Somebody who presses Ctrl-C after so many texts."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def encoded(self, num_texts: int) -> None:
        super().encoded(num_texts)
        if self.num_encoded >= self._after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("output", ["o.npy", "o.safetensors", "o.jsonl", "o.parquet"])
def test_a_stopped_run_is_taken_up(encode: Encode, tmp_path: Path, output: str) -> None:
    """To the byte what one run would have made, counts included; texts that were complete are not encoded again."""
    write_lines(tmp_path / "a.txt", [*TEXTS, "the cat " * 40])
    whole = encode("a.txt", f"whole.{output.split('.')[1]}", attention_stats=True)
    with pytest.raises(BulkStoppedError, match=r"stopped: 16 rows are complete in .*\.part") as caught:
        encode("a.txt", output, Stopping(20), attention_stats=True)
    assert caught.value.exit_code == 130
    with pytest.raises(BulkStoppedError, match="stopped: 32 rows are complete"):
        encode("a.txt", output, Stopping(20), attention_stats=True)
    watcher = RecordingWatcher()
    report = encode("a.txt", output, watcher, attention_stats=True)
    assert watcher.begun_at == 32
    assert watcher.num_encoded == report.num_encoded == 19
    assert (report.num_rows, report.num_truncated) == (whole.num_rows, whole.num_truncated) == (51, 1)
    made = {path.name.removeprefix("whole").removeprefix("o"): path for path in tmp_path.glob("o*.*")}
    assert made.keys() == {path.name.removeprefix("whole") for path in tmp_path.glob("whole*")}
    for ending, path in made.items():
        assert path.read_bytes() == (tmp_path / f"whole{ending}").read_bytes(), ending


@pytest.mark.parametrize("change", ["edited", "shorter", "longer"])
def test_an_input_that_changed(encode: Encode, tmp_path: Path, change: str, expected: Any) -> None:
    """Refused where the texts that are complete differ; what was added behind them is simply encoded."""
    write_lines(tmp_path / "a.txt", TEXTS[:40])
    with pytest.raises(BulkStoppedError):
        encode("a.txt", "o.npy", Stopping(20))
    changed = {"edited": ["another", *TEXTS[1:]], "shorter": TEXTS[:10], "longer": TEXTS}[change]
    write_lines(tmp_path / "a.txt", changed)
    if change == "longer":
        encode("a.txt", "o.npy")
        np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=1e-5)
    else:
        with pytest.raises(BulkError, match=r"a\.txt is not what .*o\.npy\.part was begun with"):
            encode("a.txt", "o.npy")
        assert np.load(tmp_path / "o.npy.part").shape == (16, 16)


def test_another_model_is_refused(encode: Encode, tmp_path: Path) -> None:
    """Rows of two models in one file would be worse than none."""
    write_lines(tmp_path / "a.txt", TEXTS)
    with pytest.raises(BulkStoppedError):
        encode("a.txt", "o.npy", Stopping(20))
    other = Embedder.load(make_bert_folder(tmp_path / "other", seed=1), dtype="float32", device="cpu", threads=1)
    options = make_options(tmp_path / "a.txt", tmp_path / "o.npy")
    with pytest.raises(BulkError, match=r"o\.npy\.part was begun with another model"):
        encode_file(options, other, LIMITS, RecordingWatcher(), io.BytesIO())


def test_an_embedding_that_is_not_finite_fails(tmp_path: Path) -> None:
    """With the line of the text, also with --skip-bad: the model is at fault, not the text."""
    folder = make_bert_folder(tmp_path / "tiny")
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    run = embedder.run

    def broken(inputs: Any, specs: Any) -> Any:
        rows = run(inputs, specs)
        for item, row in zip(inputs, rows, strict=True):
            if item.num_tokens == 5 and row.embedding is not None:
                row.embedding[3] = np.nan
        return rows

    embedder.run = broken  # type: ignore[method-assign]
    write_lines(tmp_path / "a.txt", ["a", "a dog", "the cat sat"])
    options = make_options(tmp_path / "a.txt", tmp_path / "o.npy", skip_bad=True)
    with pytest.raises(BulkError, match=r"a\.txt, line 3: the model's embedding of this text is not finite"):
        encode_file(options, embedder, LIMITS, RecordingWatcher(), io.BytesIO())
    assert not options.output.exists()


def test_a_window_of_long_texts_ends_earlier(encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is bounded by characters, not only by texts."""
    monkeypatch.setattr(app.bulk.window, "WINDOW_CHARACTERS", 100)
    write_lines(tmp_path / "a.txt", ["x" * 40] * 10)
    watcher = RecordingWatcher()
    encode("a.txt", "o.npy", watcher)
    assert [count for count, _ in watcher.reads] == [3, 6, 9, 10, 10]


def test_more_dimensions_than_there_are(encode: Encode, tmp_path: Path) -> None:
    """Wrong usage, before a file is made."""
    write_lines(tmp_path / "a.txt", ["a"])
    with pytest.raises(BulkUsageError, match="from 1 to 16, not 17"):
        encode("a.txt", "o.npy", dimensions=17)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_report_in_one_line() -> None:
    """Counts of the whole, speed of this run."""
    assert Report(100, 0, 3, 0, 50, 384, 2.0).sentence("o.npy") == (
        "o.npy: 100 texts in 384 dimensions, 50 of them now, in 2.0 s (25 a second); 3 truncated"
    )
    assert Report(100, 0, 3, 0, 50, 384, 2.0, num_texts=9).sentence("o.npy") == (
        "o.npy: 100 chunks of 9 texts in 384 dimensions, 50 of them now, in 2.0 s (25 a second); 3 truncated"
    )
    assert Report(100, 7, 3, 2, 50, 384, 2.0).sentence("o.npy").endswith("; 3 truncated, 2 numbers clipped, 7 left out")

"""How each library is loaded and what its best settings are.

Each lives in an environment of its own, so a library is imported where it is loaded and nowhere else. All run on as
many threads as Eyeline. Those that want a batch size are tried with several on a sample of the texts, and keep the
fastest; they sort by length themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bench.text_sets import MIXED, read_texts
from model.device import has_native_bfloat16

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

T = TypeVar("T")

BATCH_SIZES = (8, 16, 32, 64, 128)

NUM_SAMPLES = 128
"""Texts on which a batch size is chosen: the largest batch once."""

NUM_CALIBRATION_TEXTS = 300
"""nncf's own default; short and long ones."""

EXPORTS = Path("build/peers/exports")
"""Where models that were converted for a library are kept; ``make clean`` removes them."""


class UnavailableError(Exception):
    """What was asked for is not to be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Texts that are ready to be encoded.

    Attributes
    ----------
    run : callable
        Encodes all of them: an array (n, D), or None from what makes no embeddings.
    settings : str
        What was chosen for these texts, for the table.
    """

    run: Callable[[], NDArray[np.float32] | None]
    settings: str = ""


Prepare = Callable[[list[str]], Prepared]


def load_eyeline(model: str, dtype: str, threads: int) -> Prepare:
    """Load Eyeline, as it comes."""
    from model.embedder import Embedder

    embedder = Embedder.load(model, dtype=dtype, device="cpu", threads=threads)
    return lambda texts: Prepared(partial(embedder.encode, texts))


def load_ceiling(model: str, dtype: str, threads: int) -> Prepare:
    """Load nothing but matrix products of the model's sizes: what the processor allows."""
    from bench.ceiling import make_products, run_products
    from model.embedder import Embedder

    embedder = Embedder.load(model, dtype="float32", device="cpu", threads=threads)
    products = make_products(embedder.config, dtype)

    def prepare(texts: list[str]) -> Prepared:
        num_tokens = sum(item.num_tokens for item in embedder.tokenizer.encode(texts))

        @torch.inference_mode()
        def run() -> None:
            run_products(products, num_tokens)

        return Prepared(run)

    return prepare


def load_sentence_transformers(model: str, dtype: str, threads: int) -> Prepare:
    """Load sentence-transformers on torch."""
    number_format = _offered(dtype, {"float32": torch.float32, "bfloat16": torch.bfloat16})
    torch.set_num_threads(threads)
    return _through_sentence_transformers(model, "torch", {"dtype": number_format})


def load_onnxruntime(model: str, dtype: str, threads: int) -> Prepare:
    """Load ONNX Runtime; int8 is sentence-transformers' own dynamic quantisation for this processor."""
    import onnxruntime
    from sentence_transformers import export_dynamic_quantized_onnx_model

    has_vnni = "avx512_vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    processor, weights = ("avx512_vnni", "qint8") if has_vnni else ("avx2", "quint8")
    file_name = _offered(dtype, {"float32": "model.onnx", "int8": f"model_{weights}_{processor}.onnx"})
    torch.set_num_threads(threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    arguments: dict[str, Any] = {"provider": "CPUExecutionProvider", "session_options": options}
    folder = _export(model, "onnx", arguments)
    if not (folder / "onnx" / file_name).exists():
        plain = _load_peer(str(folder), "onnx", arguments | {"file_name": "model.onnx"})
        export_dynamic_quantized_onnx_model(plain, processor, str(folder))
    return _through_sentence_transformers(str(folder), "onnx", arguments | {"file_name": file_name})


def load_openvino(model: str, dtype: str, threads: int) -> Prepare:
    """Load OpenVINO; int8 is nncf's quantisation after training, with activations calibrated on a few hundred texts."""
    precision, file_name = _offered(
        dtype,
        {
            "float32": ("f32", "openvino_model.xml"),
            "bfloat16": ("bf16", "openvino_model.xml"),
            "int8": ("f32", "openvino_model_int8.xml"),
        },
    )
    torch.set_num_threads(threads)
    config = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    folder = _export(model, "openvino", {"ov_config": config})
    if not (folder / "openvino" / file_name).exists():
        _quantize_openvino(folder, file_name)
    return _through_sentence_transformers(str(folder), "openvino", {"ov_config": config, "file_name": file_name})


LIBRARIES: dict[str, Callable[[str, str, int], Prepare]] = {
    "eyeline": load_eyeline,
    "ceiling": load_ceiling,
    "sentence-transformers": load_sentence_transformers,
    "onnxruntime": load_onnxruntime,
    "openvino": load_openvino,
}
"""Name -> what loads a model in a dtype on so many threads."""


def load_library(library: str, model: str, dtype: str, threads: int) -> Prepare:
    """Load a library.

    Raises
    ------
    UnavailableError
        If it does not offer the dtype, or this processor does not.
    """
    if dtype == "bfloat16" and not has_native_bfloat16(torch.device("cpu")):
        raise UnavailableError("this processor does not multiply bfloat16")
    try:
        return LIBRARIES[library](model, dtype, threads)
    except (ImportError, ValueError) as error:
        raise UnavailableError(str(error)) from error


def _offered(dtype: str, settings: Mapping[str, T]) -> T:
    """Choose the settings of a dtype."""
    if dtype not in settings:
        raise UnavailableError(f"not measured in {dtype}")
    return settings[dtype]


def _load_peer(model: str, backend: str, arguments: dict[str, Any]) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model, backend=backend, device="cpu", local_files_only=True, model_kwargs=arguments)


def _through_sentence_transformers(model: str, backend: str, arguments: dict[str, Any]) -> Prepare:
    """Load a backend of sentence-transformers, with the batch size that suits the texts."""
    peer = _load_peer(model, backend, arguments)

    def encode(texts: list[str], batch_size: int) -> NDArray[np.float32]:
        embeddings = peer.encode(texts, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(embeddings, dtype=np.float32)

    def prepare(texts: list[str]) -> Prepared:
        sample = texts[:: max(1, len(texts) // NUM_SAMPLES)]
        encode(sample, max(BATCH_SIZES))
        batch_size = min(BATCH_SIZES, key=lambda size: _seconds(partial(encode, sample, size)))
        return Prepared(partial(encode, texts, batch_size), f"batches of {batch_size}")

    return prepare


def _seconds(run: Callable[[], object]) -> float:
    """Time one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _export(model: str, backend: str, arguments: dict[str, Any]) -> Path:
    """Convert a model for a backend, once; returns its folder."""
    folder = EXPORTS / f"{Path(model).name}-{backend}"
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        _load_peer(model, backend, arguments | {"export": True}).save_pretrained(str(unfinished))
        unfinished.rename(folder)
    return folder


def _quantize_openvino(folder: Path, file_name: str) -> None:
    """Write the model with int8 products beside the float32 one."""
    import nncf
    import openvino
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    plain = openvino.Core().read_model(folder / "openvino" / "openvino_model.xml")
    names = [node.any_name for node in plain.inputs]

    def inputs_of(text: str) -> dict[str, NDArray[np.int64]]:
        inputs = tokenizer(text, truncation=True, max_length=256, return_tensors="np", return_token_type_ids=True)
        return {name: inputs[name] for name in names}

    quantized = nncf.quantize(
        plain,
        nncf.Dataset(read_texts(MIXED, NUM_CALIBRATION_TEXTS), inputs_of),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=NUM_CALIBRATION_TEXTS,
    )
    openvino.save_model(quantized, folder / "openvino" / file_name, compress_to_fp16=False)

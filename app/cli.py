"""The command ``eyeline``: ``serve``, ``encode``, ``similarity``, ``search``, ``info``, ``weights``.

Exit codes: 0 done, or a clean stop; 2 bad usage or settings; 130 an interrupted command; 1 anything else. A failure is
one sentence on stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from app import settings as settings_module
from app import terminal
from app.bulk import options as bulk_options
from app.bulk.errors import BulkError
from app.bulk.options import BulkOptions
from app.settings import Settings, SettingsError
from app.version import VERSION

if TYPE_CHECKING:  # both import torch
    from app.bulk.window import BulkLimits
    from model.embedder import Embedder

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130  # the last is what a shell reports for a command ended by Ctrl-C

SHARED_MEMORY = "/dev/shm"
"""What a container can write even where its root is read-only."""

Command = Callable[[argparse.Namespace, Mapping[str, str]], int]


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_closed_streams()
    parser = make_parser()
    arguments = parser.parse_args(argv)
    command: Command = arguments.command
    try:
        return command(arguments, os.environ if environ is None else environ)
    except SettingsError as error:
        return _fail(str(error), BAD_USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_closed_streams() -> None:
    """Lead stdin, stdout and stderr nowhere where they are closed.

    Otherwise the next socket has their number, and what a library in C has to say goes to whoever is at its other end.
    """
    number = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="eyeline", description="A sentence-embedding server that shows where it looked."
    )
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start the server", allow_abbrev=False)
    settings_module.add_arguments(serve)
    serve.set_defaults(command=_serve)

    encode = commands.add_parser("encode", help="encode a file of texts, without a server", allow_abbrev=False)
    bulk_options.add_arguments(encode)
    add_model_settings(encode)
    encode.set_defaults(command=_encode)

    similarity = commands.add_parser("similarity", help="compare texts, without a server", allow_abbrev=False)
    terminal.add_similarity_arguments(similarity)
    add_model_settings(similarity)
    similarity.set_defaults(command=_similarity)

    search = commands.add_parser("search", help="find the lines of a file nearest to a query", allow_abbrev=False)
    terminal.add_search_arguments(search)
    add_model_settings(search)
    search.set_defaults(command=_search)

    info = commands.add_parser("info", help="load a model folder and say what it is, as JSON")
    info.add_argument("folder", type=Path)
    info.set_defaults(command=_info)

    weights = commands.add_parser("weights", help="fetch or import model folders")
    actions = weights.add_subparsers(required=True, metavar="ACTION")
    _add_fetch(actions.add_parser("fetch", help="put a known model under the weights folder, verified by SHA-256"))
    _add_import(actions.add_parser("import", help="turn a torch.save state dict of the seeds' encoders into a folder"))
    return parser


def add_model_settings(parser: argparse.ArgumentParser) -> None:
    """Add the settings that matter without a server; their values are checked as those of ``serve`` are."""
    group = parser.add_argument_group("model", "as eyeline serve has them, with the same EYELINE_* variables")
    group.add_argument("--model", action="append", metavar="FOLDER|NAME", help="folder, or name under the weights")
    group.add_argument("--weights-dir", metavar="FOLDER", help="where names are looked up")
    group.add_argument("--dtype", help="number type: auto, float32, bfloat16, float16, int8")
    group.add_argument("--device", help="where the model runs: auto, cpu, cuda, cuda:N")
    group.add_argument("--threads", metavar="N", help="CPU threads")
    group.add_argument("--special-tokens", help="what [SEP] in a text is: text, parse")
    group.add_argument(
        "--batch-tokens", metavar="TOKENS", help="tokens run together in one batch; the longest text always fits"
    )
    group.add_argument("--batch-attention-values", metavar="VALUES", help="attention weights of one batch")
    group.add_argument("--max-attention-values-computed", metavar="VALUES", help="attention weights of one text")
    group.add_argument("--max-text-characters", metavar="CHARACTERS", help="a longer text is bad")


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")
    parser.add_argument("--weights-dir", type=Path, help="default: EYELINE_WEIGHTS_DIR, else ./weights")
    parser.set_defaults(command=_fetch)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.pt", help="a state dict, read with weights_only")
    parser.add_argument("--num-heads", type=int, required=True, help="attention heads: no state dict tells them")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FILE", help="tokenizer.json")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: FILE without its ending")
    parser.add_argument("--pooling", default="mean", choices=("mean", "cls", "max", "lasttoken"))
    parser.add_argument("--max-length", type=int, default=512, metavar="TOKENS", help="longest text (default: 512)")
    parser.add_argument("--pad-id", type=int, default=0, metavar="ID", help="id of the padding token (default: 0)")
    parser.add_argument("--activation", default="relu", help="of the feed-forward layers (default: relu)")
    parser.set_defaults(command=_import)


def _serve(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Start the server and run until it is stopped."""
    settings = settings_module.from_arguments(arguments, environ)
    from app.log import configure_logging
    from app.tracing import TracingError, open_tracer, wants_traces

    configure_logging(settings.log_level)
    try:
        endpoint = settings.otlp_endpoint
        tracer = open_tracer(endpoint, environ) if wants_traces(endpoint, environ) else None
    except TracingError as error:
        return _fail(str(error), BAD_USAGE)
    # torch takes a second to import: not before the settings are known to be good
    from app.main import create_app, load_models
    from app.server import TLSError, check_address, serve, tls_context
    from model.errors import CheckpointError

    try:
        check_address(settings.host, settings.port)
    except OSError as error:
        return _fail(f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}", FAILED)
    tls = None
    if settings.tls_certificate is not None and settings.tls_key is not None:
        try:
            tls = tls_context(settings.tls_certificate, settings.tls_key)
        except TLSError as error:
            return _fail(str(error), BAD_USAGE)
    for spec in settings.model:
        if not spec.folder.exists():
            return _fail(f"{spec.folder} is not a folder; eyeline weights fetch NAME gets a known model", FAILED)
    try:
        # The app alone holds the models, or one that is replaced would stay.
        app = create_app(settings, load_models(settings), tracer)
    except (CheckpointError, ValueError) as error:
        return _fail(str(error), FAILED)
    return serve(
        app,
        host=settings.host,
        port=settings.port,
        drain_delay_seconds=settings.drain_delay_seconds,
        shutdown_grace_seconds=settings.shutdown_grace_seconds,
        tls=tls,
    )


def _encode(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Encode a file."""
    settings = settings_of_one_model(arguments, environ)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stopped container is an interrupt
    try:
        options = bulk_options.read_options(arguments)
        bulk_options.check_files(options)
        return _encode_file(options, settings, show=is_shown(arguments.progress))
    except BulkError as error:
        return _fail(str(error), error.exit_code)
    finally:
        signal.signal(signal.SIGTERM, before)


def _encode_file(options: BulkOptions, settings: Settings, *, show: bool) -> int:
    """Load the model and encode."""
    # torch takes a second to import: not before the options are known to be good
    from app.bulk.encode import encode_file
    from app.bulk.progress import ProgressBar

    embedder = load_embedder(settings, options.output.parent)
    limits = bulk_limits(settings)
    with closing(ProgressBar(options.output.name, show=show)) as bar:
        report = encode_file(options, embedder, limits, bar, sys.stdin.buffer)
    print(report.sentence(options.output.name))  # noqa: T201 - this command's output
    return 0


def settings_of_one_model(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Read the settings of a command that runs without a server; raises :class:`SettingsError`."""
    if arguments.model and len(arguments.model) > 1:
        raise SettingsError("a command without a server runs one model: give --model once")
    return settings_module.from_arguments(arguments, environ)


def load_embedder(settings: Settings, writable: Path) -> Embedder:
    """Load the model; raises :class:`BulkError`. A folder for torch is made in ``writable`` where there is no other."""
    # torch takes a second to import: not before the options are known to be good
    from model.embedder import Embedder
    from model.errors import CheckpointError

    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # a read-only root; torch wants one, for an empty folder
        tempfile.tempdir = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else str(writable.resolve())
    folder = settings.model[0].folder
    if not folder.exists():
        raise BulkError(f"{folder} is not a folder; eyeline weights fetch NAME gets a known model")
    try:
        return Embedder.load(
            folder,
            dtype=settings.dtype,
            device=settings.device,
            threads=settings.threads,
            special_tokens=settings.special_tokens,
        )
    except (CheckpointError, ValueError) as error:
        raise BulkError(str(error)) from error


def bulk_limits(settings: Settings) -> BulkLimits:
    """Pick from the settings what bounds a text and a batch."""
    from app.bulk.window import BulkLimits

    return BulkLimits(
        max_text_characters=settings.max_text_characters,
        batch_tokens=settings.batch_tokens,
        batch_attention_values=settings.batch_attention_values,
        max_attention_values_computed=settings.max_attention_values_computed,
    )


def _similarity(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Compare the texts of the command line."""
    settings = settings_of_one_model(arguments, environ)
    try:
        terminal.check_similarity(arguments.texts)
        from app.bulk.search import embed

        embeddings = embed(load_embedder(settings, Path.cwd()), arguments.texts)
    except BulkError as error:
        return _fail(str(error), error.exit_code)
    name = settings.model[0].name
    print(terminal.describe_similarity(name, arguments.texts, embeddings, as_json=arguments.json))  # noqa: T201 - output
    return 0


def _search(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Find the texts of a file that are nearest to a query."""
    settings = settings_of_one_model(arguments, environ)
    try:
        options = terminal.search_options(arguments)
        from app.bulk.search import search_file

        embedder = load_embedder(settings, Path.cwd())
        found = search_file(options, embedder, bulk_limits(settings), arguments.query, arguments.top, sys.stdin.buffer)
    except BulkError as error:
        return _fail(str(error), error.exit_code)
    print(terminal.describe_found(settings.model[0].name, found, as_json=arguments.json))  # noqa: T201 - output
    return 0


def is_shown(asked: bool | None) -> bool:
    """Draw a progress bar where that was asked for, or on a terminal."""
    return sys.stderr.isatty() if asked is None else asked


def _info(arguments: argparse.Namespace, _: Mapping[str, str]) -> int:
    """Load a folder, which checks it, and print what it is."""
    from model.embedder import Embedder
    from model.errors import CheckpointError

    try:
        described = dataclasses.asdict(Embedder.load(arguments.folder, device="cpu", dtype="float32").info)
    except CheckpointError as error:
        return _fail(str(error), FAILED)
    print(json.dumps(described, indent=2, default=str))  # noqa: T201 - this command's output
    return 0


def _fetch(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Fetch a known model."""
    from app.fetch import FetchError, fetch

    weights_dir = arguments.weights_dir or Path(environ.get("EYELINE_WEIGHTS_DIR") or "weights")
    try:
        fetch(arguments.name, weights_dir, progress=sys.stderr.isatty())
    except FetchError as error:
        return _fail(str(error), FAILED)
    return 0


def _import(arguments: argparse.Namespace, _: Mapping[str, str]) -> int:
    """Convert a state dict."""
    from model.convert import convert_state_dict
    from model.errors import CheckpointError

    output = arguments.output or arguments.file.with_suffix("")
    try:
        conversion = convert_state_dict(
            arguments.file,
            output,
            num_attention_heads=arguments.num_heads,
            tokenizer=arguments.tokenizer,
            pooling=arguments.pooling,
            max_length=arguments.max_length,
            pad_token_id=arguments.pad_id,
            activation=arguments.activation,
        )
    except CheckpointError as error:
        return _fail(str(error), FAILED)
    config = conversion.config
    print(  # noqa: T201 - this command's output
        f"{output}: {conversion.format.name}, {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{len(conversion.unused)} known tensors left out; serve it with: eyeline serve --model {output}"
    )
    return 0


def _fail(message: str, code: int) -> int:
    """Say what went wrong in one sentence."""
    print(f"eyeline: {message}", file=sys.stderr)  # noqa: T201 - this command's output
    return code


if __name__ == "__main__":
    sys.exit(main())

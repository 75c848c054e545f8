"""Every option of the server: its name, its unit and what a wrong value does.

:class:`Settings` is the only list of options. ``app/settings.py`` reads flags and variables into it, and makes
``eyeline serve --help`` and the README's table of its fields. The environment is an argument, never read here, so a
:class:`Settings` built in a test sees nothing of the machine it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.keys import NamedKey, parse_keys, read_keys_file
from app.option_names import PREFIX, Shown, label_of, shorten, variable_of

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A model's name is a part of a path (``/models/{name}/...``) and a metrics label."""

MAX_SECONDS = 86_400.0
"""A day, for every setting in seconds: timers take none of 1e300, and a longer one is a slip."""

ORIGIN = re.compile(r"https?://([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
"""Scheme, host in lower case, perhaps a port: what a browser sends, and no more."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to serve.

    Attributes
    ----------
    name : str
        What callers write in ``model``, and the metrics' ``model`` label.
    folder : Path
        Where its ``config.json`` is.
    """

    name: str
    folder: Path


class Settings(BaseSettings):
    """The options of one server process. Each field's description is its documentation."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )

    # Before ``model``: a model's bare name is looked up in it.
    weights_dir: Annotated[
        Path,
        Shown("FOLDER", "./weights"),
        Field(
            description="Folder in which a model that is given by its bare name is looked up, and where fetched models "
            "land. A wrong folder stops the start: the model is not found."
        ),
    ] = Path("weights")
    model: Annotated[
        tuple[ModelSpec, ...],
        Shown("[NAME=]FOLDER", "eyeline-base", repeats=True),
        Field(
            description="Model to serve: a folder, a bare name under the weights folder, or name=folder; the name is "
            "the folder's last part unless given. Repeat the flag, or separate by commas in the variable, to serve "
            "several; the first is the default. Each model takes its weights' size in memory."
        ),
    ] = (ModelSpec("eyeline-base", Path("eyeline-base")),)
    host: Annotated[
        str,
        Shown("ADDRESS"),
        Field(
            min_length=1,
            description="Address to listen on. 127.0.0.1 is reached from this machine alone; a container needs "
            "0.0.0.0, which opens the server to everyone who can reach the machine.",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Shown("PORT"),
        Field(
            ge=0,
            le=65535,
            description="TCP port to listen on, 1 to 65535; 0 takes any free one. Ports under 1024 usually need "
            "privileges.",
        ),
    ] = 8080
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        Field(
            description="Number type of the weights and products. auto is bfloat16 where the hardware multiplies it "
            "natively, else float32. float32 is the most exact and the slowest; float16 is meant for GPUs and may "
            "overflow; int8 is the fastest on CPUs that multiply bytes (AVX512-VNNI, AMX), and a little less exact."
        ),
    ] = "auto"
    device: Annotated[
        str,
        Shown("auto|cpu|cuda[:N]"),
        Field(
            description="Where the model runs. auto is the first GPU, or the CPU where there is none; a device that is "
            "not there stops the start."
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        Shown("N", "from the cgroup's CPU quota and the CPU affinity"),
        Field(
            ge=1,
            le=1024,
            description="CPU threads of the matrix products. Too few leave cores idle; more than the quota allows and "
            "threads wait for one another, which can cost most of the speed.",
        ),
    ] = None
    special_tokens: Annotated[
        Literal["text", "parse"],
        Field(
            description="What a special token's spelling, such as [SEP], means inside a text. text reads it as plain "
            "characters; parse makes it the special token, as sentence-transformers does, and lets whoever writes a "
            "text break up its structure."
        ),
    ] = "text"
    batch_tokens: Annotated[
        int | None,
        Shown("TOKENS", "2048 on CPU, 16384 on CUDA"),
        Field(
            ge=1,
            description="Tokens run together in one batch. Too small wastes the hardware; too large makes short texts "
            "wait for long batches and takes memory. Under the longest text that a model reads, the start is refused.",
        ),
    ] = None
    batch_attention_values: Annotated[
        int,
        Shown("VALUES"),
        Field(
            ge=1,
            description="Attention weights (layers x heads x tokens x tokens, 4 bytes each) computed in one batch; a "
            "sparse vector counts as many as its vocabulary has tokens. One text that needs more runs alone. Too small "
            "runs texts with maps one by one; too large takes memory and holds up requests without maps.",
        ),
    ] = 8_000_000
    max_body_bytes: Annotated[
        int,
        Shown("BYTES"),
        Field(
            ge=1,
            description="Largest request body; more is answered with 413. Too small refuses honest requests; too large "
            "lets one request fill the memory, as a body is held whole while it is parsed.",
        ),
    ] = 4 * 1024 * 1024
    # Room for the common clients' own chunks (up to 1,000 texts); some seconds of work on two cores.
    max_texts: Annotated[
        int,
        Shown("TEXTS"),
        Field(
            ge=1,
            description="Texts in one request; more is answered with 413. Too small makes clients send many requests; "
            "too large lets one request hold the queue for long. Not above --max-queue-texts.",
        ),
    ] = 1024
    # Far more than any model reads; a text takes up to 500 times its characters in bytes while it is cut into tokens.
    max_text_characters: Annotated[
        int,
        Shown("CHARACTERS"),
        Field(
            ge=1,
            description="Characters (code points) in one text, counted before it is cut into tokens; more is answered "
            "with 413. Too small refuses long documents that would have been truncated; too large spends time on "
            "characters that truncation drops.",
        ),
    ] = 200_000
    max_attention_values_list: Annotated[
        int,
        Shown("VALUES"),
        Field(
            ge=1,
            description="Numbers of attention in one answer as JSON lists (about 7 bytes each); more is answered with "
            "413. Too small refuses ordinary maps; too large makes answers that take seconds to write and to read. Not "
            "above --max-attention-values-binary.",
        ),
    ] = 1_000_000
    max_attention_values_binary: Annotated[
        int,
        Shown("VALUES"),
        Field(
            ge=1,
            description="Numbers of attention in one answer as base64, safetensors or npz (2 or 4 bytes each, 4 until "
            "they are sent); more is answered with 413. Too small refuses long texts with all their layers and heads; "
            "too large lets one request take hundreds of megabytes.",
        ),
    ] = 32_000_000
    # All heads of all layers of 50 texts of 256 tokens, with 6 layers and 12 heads.
    max_attention_values_computed: Annotated[
        int,
        Shown("VALUES"),
        Field(
            ge=1,
            description="Attention weights computed for one request (layers x heads x tokens x tokens, all layers and "
            "heads for a rollout), whatever is sent of them; more is answered with 413. Too small refuses statistics "
            "and rollouts of long texts; too large lets one request hold the worker for seconds.",
        ),
    ] = 256_000_000
    # 40 texts of 256 tokens with 384 dimensions; about 12 bytes a number in JSON.
    max_token_values: Annotated[
        int,
        Shown("VALUES"),
        Field(
            ge=1,
            description="Numbers in one answer of /embed_all, which has a vector for each token; a weight in one of "
            "/embed_sparse counts as three. More is answered with 413. Too small refuses ordinary documents; too large "
            "makes answers that take seconds to write, and hundreds of megabytes.",
        ),
    ] = 4_000_000
    # About 80 MB at 128 tokens a text: a bound on memory, as short texts cost little of the token budget.
    max_queue_texts: Annotated[
        int,
        Shown("TEXTS"),
        Field(
            ge=1,
            description="Texts that may wait, for each model; a request that does not fit is answered with 429. Too "
            "small refuses bursts that would have been served in time; too large takes memory and lets callers wait "
            "past their own time-outs.",
        ),
    ] = 16_384
    max_queue_tokens: Annotated[
        int | None,
        Shown("TOKENS", "30 seconds of measured speed, but at least 8 full batches"),
        Field(
            ge=1,
            description="Tokens that may wait, for each model; a request that does not fit is answered with 429. Too "
            "small refuses bursts that would have been served in time; too large lets callers wait past their own "
            "time-outs. Not under --batch-tokens.",
        ),
    ] = None
    max_key_share: Annotated[
        float,
        Shown("SHARE"),
        Field(
            gt=0,
            le=1,
            allow_inf_nan=False,
            description="How much of --max-queue-texts and of --max-queue-tokens one API key may fill, from 0 to 1; "
            "more is answered with 429, one request that is more with 413. Too small refuses bursts though the server "
            "is idle; 1 lets one key keep all others out.",
        ),
    ] = 1.0
    request_timeout_seconds: Annotated[
        float | None,
        Shown("SECONDS", "off"),
        Field(
            gt=0,
            le=MAX_SECONDS,
            allow_inf_nan=False,
            description="Longest a request may take before it is answered with 504 and its waiting texts are dropped; "
            "a caller asks for less with the header X-Request-Timeout. Too small fails requests under load; too large, "
            "or off, works for callers who gave up without closing their connection. At most a day.",
        ),
    ] = None
    hang_seconds: Annotated[
        float,
        Shown("SECONDS"),
        Field(
            ge=1,
            le=MAX_SECONDS,
            allow_inf_nan=False,
            description="A batch that gets no processor time for longer is taken for hung, and so is one that runs "
            "five times as long (on a GPU, and on other systems than Linux, one that runs longer): the server is "
            "neither ready nor live any more, answers whoever waits with 503, and five seconds later ends with exit "
            "code 1. Ten times a full batch at the measured speed is allowed in any case. Too small ends a server that "
            "is only slow; too large lets callers wait for a stuck one. At most a day.",
        ),
    ] = 60.0
    shutdown_grace_seconds: Annotated[
        float,
        Shown("SECONDS"),
        Field(
            ge=0,
            le=MAX_SECONDS,
            allow_inf_nan=False,
            description="How long a stopping server goes on with admitted requests before it answers the rest with "
            "503. Too small cuts off answers; too large, and the platform kills the process first (Docker waits 10 "
            "seconds unless stop_grace_period says more, Kubernetes 30). At most a day.",
        ),
    ] = 30.0
    drain_delay_seconds: Annotated[
        float,
        Shown("SECONDS"),
        Field(
            ge=0,
            le=MAX_SECONDS,
            allow_inf_nan=False,
            description="How long a stopping server says it is not ready and still takes requests, before the grace "
            "begins. Too small behind a load balancer, and requests arrive at a closed port; too large delays every "
            "stop. At most a day.",
        ),
    ] = 0.0
    warmup: Annotated[
        bool,
        Field(
            description="Run a few batches before the server says it is ready, which also measures its speed. Off "
            "starts sooner, but the first requests are slow and the queue starts with a guess of the speed."
        ),
    ] = True
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(
            description="Lowest level that is logged. debug writes a line for each request, which costs speed; error "
            "hides warnings. Texts are logged at no level."
        ),
    ] = "info"
    access_log_sample: Annotated[
        float,
        Shown("SHARE"),
        Field(
            ge=0,
            le=1,
            allow_inf_nan=False,
            description="Share of requests that get a line in the log, from 0 to 1; a request's id decides, so that "
            "replicas agree. Faults of the server always get one. Too small shows nothing of ordinary traffic; 1 "
            "writes a line for every request, which costs speed and disk.",
        ),
    ] = 0.0
    slow_request_seconds: Annotated[
        float | None,
        Shown("SECONDS", "off"),
        Field(
            gt=0,
            le=MAX_SECONDS,
            allow_inf_nan=False,
            description="A request that takes longer is logged as a warning, with the time of each stage. Too small "
            "floods the log when the server is busy; too large, or off, and slow requests leave no line. At most a "
            "day.",
        ),
    ] = None
    otlp_endpoint: Annotated[
        str | None,
        Shown("URL", "off"),
        Field(
            description="Collector of OpenTelemetry traces, such as http://collector:4318, spoken to by OTLP over "
            "HTTP; OTEL_EXPORTER_OTLP_ENDPOINT and its relatives do as well. Needs the extra otel. To a wrong one "
            "nothing comes through, and the log says so."
        ),
    ] = None
    docs: Annotated[
        bool,
        Field(
            description="Serve /docs and /openapi.json. Off hides the API's description, not the API; on shows it to "
            "everyone who reaches the port."
        ),
    ] = True
    viewer: Annotated[
        bool,
        Field(
            description="Serve the page at / that draws attention maps. Off removes the page, not the API it asks; on "
            "offers it to everyone who reaches the port."
        ),
    ] = True

    api_keys: Annotated[
        SecretStr | None,
        Shown("KEYS", "none: no key is asked for", has_flag=False, may_be_empty=False),
        Field(
            description="API keys, KEY or NAME:KEY, separated by commas; whoever shows none is answered with 401, "
            "but at /health, the page and /docs. A key has at least 16 letters, digits or ._~+/-; its name is logged "
            "and counted, the key never. Not together with --api-keys-file."
        ),
    ] = None
    api_keys_file: Annotated[
        Path | None,
        Shown("FILE", "none", may_be_empty=False),
        Field(
            description="File of API keys instead, one a line, # begins a comment: a Docker or Kubernetes secret, for "
            "instance. Read when the server starts; a file that is empty or cannot be read stops the start."
        ),
    ] = None
    admin_key: Annotated[
        SecretStr | None,
        Shown("KEY", "none: there is no /admin", has_flag=False, may_be_empty=False),
        Field(
            description="The key that opens what is under /admin, in the form of an API key and different from all of "
            "them. Not together with --admin-key-file."
        ),
    ] = None
    admin_key_file: Annotated[
        Path | None,
        Shown("FILE", "none", may_be_empty=False),
        Field(description="File that holds the admin key instead, in the form of --api-keys-file."),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        Shown("FILE", "none: plain HTTP"),
        Field(
            description="Certificate in PEM form, with the chain behind it: serve HTTPS. Read when the server starts, "
            "so a new one needs a restart. Together with --tls-key."
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Shown("FILE", "none"),
        Field(description="Private key of the certificate, in PEM form and without a password."),
    ] = None
    cors_origins: Annotated[
        tuple[str, ...],
        Shown("ORIGIN", "none: pages of this server alone", repeats=True),
        Field(
            description="Origin, such as https://app.example.com, whose pages may ask this server from a browser; "
            "repeat the flag, or separate by commas in the variable. A server on somebody's own machine is then open "
            "to such a page when they visit it."
        ),
    ] = ()
    metrics_without_key: Annotated[
        bool,
        Field(
            description="Answer /metrics without an API key, where there are keys. Off needs a key in Prometheus' "
            "configuration; on shows names of keys, and how busy the server is, to everyone who reaches the port."
        ),
    ] = False

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from arguments alone: :func:`from_arguments` passes in flags and environment."""
        return (init_settings,)

    @field_validator("model", mode="before")
    @classmethod
    def _read_models(cls, value: object, info: ValidationInfo) -> tuple[ModelSpec, ...]:
        """Turn texts into specs, and bare names into folders under ``weights_dir``."""
        entries = [value] if isinstance(value, str | ModelSpec) else value
        if not isinstance(entries, list | tuple):
            raise ValueError("must be a list of models")
        # Absent only where it was refused itself, which is then what the message is about.
        weights_dir = info.data.get("weights_dir", Path())
        specs = tuple(_model_spec(entry, weights_dir) for entry in entries)
        if not specs:
            raise ValueError("must name at least one model")
        names = [spec.name for spec in specs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"must give each model a name of its own (name=folder), but {name!r} comes twice")
        return specs

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_otlp_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", value):
            raise ValueError(
                "must be http://HOST:PORT or https://HOST:PORT, perhaps with a path, without user or query"
            )
        return value

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", value):
            raise ValueError(f"must be auto, cpu, cuda or cuda:N, not {shorten(value)}")
        return value

    @field_validator("api_keys", "admin_key")
    @classmethod
    def _check_keys(cls, value: SecretStr | None) -> SecretStr | None:
        _keys(value, None)
        return value

    @field_validator("api_keys_file", "admin_key_file")
    @classmethod
    def _check_keys_file(cls, value: Path | None) -> Path | None:
        _keys(None, value)
        return value

    def read_api_keys(self) -> list[NamedKey]:
        """Return the API keys, of which there may be none; a file may have become unreadable: ``KeysError``."""
        return _keys(self.api_keys, self.api_keys_file)

    def read_admin_keys(self) -> list[NamedKey]:
        """Return the keys that open ``/admin``, of which there may be none; raises ``KeysError`` likewise."""
        return _keys(self.admin_key, self.admin_key_file)

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _read_origins(cls, value: object) -> tuple[str, ...]:
        """Take origins as browsers spell them; a star would be every page of the web."""
        entries = [value] if isinstance(value, str) else list(cast(Sequence[object], value))
        origins = [str(entry).strip() for entry in entries]
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"must be origins such as https://app.example.com:8443, not {shorten(origin)}")
        return tuple(dict.fromkeys(origins))

    @model_validator(mode="after")
    def _check_doors(self) -> Self:
        """Refuse two sources of the same keys, one key for two doors, and half of what TLS needs."""
        for value, file in (("api_keys", "api_keys_file"), ("admin_key", "admin_key_file")):
            if getattr(self, value) is not None and getattr(self, file) is not None:
                raise ValueError(f"{variable_of(value)} and {label_of(file)} must not be given together.")
        if {key for _, key in self.read_api_keys()} & {key for _, key in self.read_admin_keys()}:
            raise ValueError("the admin key must be another than the API keys, or it would open what they open.")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError(f"{label_of('tls_certificate')} and {label_of('tls_key')} must be given together.")
        return self

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse values that are fine alone and contradict one another."""
        if self.max_texts > self.max_queue_texts:
            raise ValueError(
                f"{label_of('max_texts')} must not be above {label_of('max_queue_texts')}, or a request of "
                f"{self.max_texts} texts could never wait in a queue of {self.max_queue_texts}."
            )
        if self.max_attention_values_list > self.max_attention_values_binary:
            raise ValueError(
                f"{label_of('max_attention_values_list')} must not be above {label_of('max_attention_values_binary')}, "
                f"but {self.max_attention_values_list} is above {self.max_attention_values_binary}."
            )
        # A batch's own lower limit, the longest text that a model reads, is checked once the models are loaded.
        if (
            self.max_queue_tokens is not None
            and self.batch_tokens is not None
            and self.max_queue_tokens < self.batch_tokens
        ):
            raise ValueError(
                f"{label_of('max_queue_tokens')} must not be under {label_of('batch_tokens')}, or a batch of "
                f"{self.batch_tokens} tokens could never gather in a queue of {self.max_queue_tokens}."
            )
        return self


def _keys(text: SecretStr | None, file: Path | None) -> list[NamedKey]:
    if file is not None:
        return read_keys_file(file)
    return [] if text is None else parse_keys(text.get_secret_value())


def _model_spec(entry: object, weights_dir: Path) -> ModelSpec:
    """Read FOLDER, NAME or name=folder; a bare name that is no folder here is one under ``weights_dir``."""
    name: str | None = None
    if isinstance(entry, ModelSpec):
        name, folder_text = entry.name, str(entry.folder)
    else:
        folder_text = str(entry).strip()
        before, equals, after = folder_text.partition("=")
        # A slash before the sign means that the sign belongs to the folder: /data/run=3/model.
        if equals and "/" not in before:
            name, folder_text = before.strip(), after.strip()
    if not folder_text:
        raise ValueError(f"must be FOLDER, NAME or name=folder, not {shorten(str(entry))}")
    folder = Path(folder_text)
    if "/" not in folder_text and folder_text not in {".", ".."} and not folder.is_dir():
        folder = weights_dir / folder_text
    if name is None:
        # "." and ".." have no name before they are resolved.
        name = folder.resolve().name if folder.name in {"", ".."} else folder.name
    if not MODEL_NAME.fullmatch(name):
        raise ValueError(
            "must give each model a name of letters, digits, '.', '_' and '-', such as name=folder, "
            f"not {shorten(name)}"
        )
    return ModelSpec(name, folder)

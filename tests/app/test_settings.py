"""Claims about app/settings.py, and what it makes of the fields of app/options.py."""

import argparse
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from app.settings import (
    ModelSpec,
    Settings,
    SettingsError,
    add_arguments,
    from_arguments,
    load_settings,
    settings_table,
)

NAMES = list(Settings.model_fields)
SECRETS = ("api_keys", "admin_key")
HALVES = ("tls_certificate", "tls_key")
GUARDS = (*SECRETS, "api_keys_file", "admin_key_file")
KEY = "a-key-of-these-tests"
KUBERNETES_ENVIRONMENT = {
    "EYELINE_SERVICE_HOST": "10.0.0.11",
    "EYELINE_SERVICE_PORT": "8080",
    "EYELINE_SERVICE_PORT_HTTP": "8080",
    "EYELINE_SERVICE_PORT_HTTP_METRICS": "9090",
    "EYELINE_PORT_8080_TCP": "tcp://10.0.0.11:8080",
    "EYELINE_PORT_8080_TCP_ADDR": "10.0.0.11",
    "EYELINE_PORT_8080_TCP_PORT": "8080",
    "EYELINE_PORT_8080_TCP_PROTO": "tcp",
    "EYELINE_PORT_53_UDP": "udp://10.0.0.11:53",
    "EYELINE_PORT_53_UDP_ADDR": "10.0.0.11",
    "EYELINE_PORT_7_SCTP": "sctp://10.0.0.11:7",
    "EYELINE_PORT_7_SCTP_PROTO": "sctp",
    "EYELINE_APP_SERVICE_HOST": "10.0.0.12",
    "EYELINE_APP_SERVICE_PORT": "80",
    "EYELINE_APP_SERVICE_PORT_WEB": "80",
    "EYELINE_APP_PORT": "tcp://10.0.0.12:80",
    "EYELINE_APP_PORT_80_TCP": "tcp://10.0.0.12:80",
    "EYELINE_APP_PORT_80_TCP_ADDR": "10.0.0.12",
    "EYELINE_TEAM_B_2_PORT": "udp://[fd00::1]:53",
    "EYELINE_TEAM_B_2_PORT_53_UDP_PROTO": "udp",
}


def refusal(*argv: str, **environ: str) -> str:
    """The message with which these settings are refused; always one sentence on one line."""
    with pytest.raises(SettingsError) as caught:
        load_settings(argv, environ)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def test_defaults() -> None:
    """Without flags and environment, the documented defaults hold."""
    settings = load_settings([], {})
    assert settings.model_dump() == {
        "weights_dir": Path("weights"),
        "model": ({"name": "eyeline-base", "folder": Path("weights/eyeline-base")},),
        "host": "127.0.0.1",
        "port": 8080,
        "dtype": "auto",
        "device": "auto",
        "threads": None,
        "special_tokens": "text",
        "batch_tokens": None,
        "batch_attention_values": 8_000_000,
        "max_body_bytes": 4_194_304,
        "max_texts": 1024,
        "max_text_characters": 200_000,
        "max_attention_values_list": 1_000_000,
        "max_attention_values_binary": 32_000_000,
        "max_attention_values_computed": 256_000_000,
        "max_token_values": 4_000_000,
        "max_queue_texts": 16_384,
        "max_queue_tokens": None,
        "max_key_share": 1.0,
        "request_timeout_seconds": None,
        "hang_seconds": 60.0,
        "shutdown_grace_seconds": 30.0,
        "drain_delay_seconds": 0.0,
        "warmup": True,
        "log_level": "info",
        "access_log_sample": 0.0,
        "slow_request_seconds": None,
        "otlp_endpoint": None,
        "docs": True,
        "viewer": True,
        "api_keys": None,
        "api_keys_file": None,
        "admin_key": None,
        "admin_key_file": None,
        "tls_certificate": None,
        "tls_key": None,
        "cors_origins": (),
        "metrics_without_key": False,
    }


def test_precedence() -> None:
    """A flag wins over a variable, a variable over the default."""
    assert load_settings([], {}).port == 8080
    assert load_settings([], {"EYELINE_PORT": "81"}).port == 81
    assert load_settings(["--port", "82"], {"EYELINE_PORT": "81"}).port == 82
    assert load_settings(["--model", "a=x"], {"EYELINE_MODEL": "b=y,c=z"}).model[0].name == "a"
    assert load_settings(["--warmup"], {"EYELINE_WARMUP": "false"}).warmup is True
    assert load_settings(["--no-docs"], {"EYELINE_DOCS": "true"}).docs is False


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_its_flag_and_variable(name: str, tmp_path: Path) -> None:
    """A field called max_queue_texts is --max-queue-texts and EYELINE_MAX_QUEUE_TEXTS, and both set it; a secret has no
    flag, which everyone on the machine could read.
    """
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    info = Settings.model_fields[name]
    samples = {
        "weights_dir": "/w",
        "model": "a=/m",
        "host": "::1",
        "device": "cuda:1",
        "threads": "3",
        "max_attention_values_binary": "2000000",
        "access_log_sample": "0.25",
        "otlp_endpoint": "http://collector:4318",
        "api_keys": KEY,
        "admin_key": KEY,
        "max_key_share": "0.5",
        "cors_origins": "https://app.example.com",
        "api_keys_file": str(keys),
        "admin_key_file": str(keys),
    }
    if info.annotation is bool:
        word = "no" if info.default else "yes"
        argv, text = [f"--{'no-' * info.default}{name.replace('_', '-')}"], word
    else:
        literal = get_origin(info.annotation) is Literal
        text = samples.get(name) or (get_args(info.annotation)[-1] if literal else "2048")
        argv = ["--" + name.replace("_", "-"), text]
    if name in HALVES:
        assert "must be given together" in refusal(*argv)
        argv += ["--tls-certificate", "c", "--tls-key", "k"]
        assert getattr(load_settings(argv, {}), name) == Path("c" if name == "tls_certificate" else "k")
        return
    if name in SECRETS:
        assert "unrecognized arguments" in refusal(*argv).lower()
        assert getattr(load_settings([], {"EYELINE_" + name.upper(): text}), name).get_secret_value() == text
        return
    by_flag = load_settings(argv, {})
    by_variable = load_settings([], {"EYELINE_" + name.upper(): text})
    assert by_flag == by_variable
    assert getattr(by_flag, name) != getattr(Settings(), name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GUARDS])
def test_empty_variable_is_unset(name: str) -> None:
    """A variable that is set to nothing, as compose writes it, leaves the default."""
    assert load_settings([], {"EYELINE_" + name.upper(): ""}) == Settings()


@pytest.mark.parametrize("name", GUARDS)
def test_empty_variable_of_keys_is_refused(name: str) -> None:
    """A secret that did not arrive must not leave the server open."""
    for nothing in ("", " ", "\n"):
        assert "is set, but empty" in refusal(**{"EYELINE_" + name.upper(): nothing})
    assert load_settings([], {}) == Settings()


def test_a_key_is_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with keys, neither the sentence nor what it came from, nor --help, nor a dump shows one."""
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n{KEY}\n")
    monkeypatch.setenv("COLUMNS", "200")
    said = ""
    for environ in (
        {"EYELINE_API_KEYS": f"{KEY}!"},
        {"EYELINE_API_KEYS": f"{KEY},{KEY}"},
        {"EYELINE_API_KEYS": KEY, "EYELINE_ADMIN_KEY": KEY},
        {"EYELINE_API_KEYS": KEY, "EYELINE_API_KEYS_FILE": str(tmp_path / "other")},
        {"EYELINE_API_KEYS": KEY, "EYELINE_PORT": "none"},
        {"EYELINE_API_KEYS_FILE": str(file)},
        {"EYELINE_API_KEY": KEY},
    ):
        with pytest.raises(SettingsError) as caught:
            load_settings([], environ)
        error: BaseException | None = caught.value
        while error is not None:
            said += f"{error} {error!r} {error.args}"
            error = error.__cause__ or error.__context__
    settings = load_settings([], {"EYELINE_API_KEYS": KEY, "EYELINE_ADMIN_KEY": "a" * 16})
    said += f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()} {settings_table()}"
    assert KEY not in said
    assert [key for _, key in settings.read_api_keys()] == [KEY]


def test_origins_are_written_as_browsers_send_them() -> None:
    """Several flags, or commas in the variable; each once."""
    origins = ("https://app.example.com", "http://localhost:3000", "http://[::1]:8080", "https://10.0.0.1")
    flags = [part for origin in (*origins, origins[0]) for part in ("--cors-origins", origin)]
    assert load_settings(flags, {}).cors_origins == origins
    assert load_settings([], {"EYELINE_CORS_ORIGINS": " , ".join(origins)}).cors_origins == origins


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "null",
        "https://*.example.com",
        "https://a.b/",
        "a.b",
        "https://A.b",
        "ftp://a.b",
        "https://a:b@c",
        "https://a:0",
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    """Above all the star, which would open the server to every page of the web."""
    assert refusal("--cors-origins", text).startswith("--cors-origins must be origins such as")


def test_keys_have_one_source_and_one_door(tmp_path: Path) -> None:
    """A variable and a file at once, or one key for /admin and for the rest, would be somebody's mistake."""
    file = tmp_path / "keys"
    file.write_text(f"one:{KEY}")
    together = refusal("--api-keys-file", str(file), EYELINE_API_KEYS=KEY)
    assert together.startswith("EYELINE_API_KEYS and --api-keys-file (EYELINE_API_KEYS_FILE)")
    assert refusal("--admin-key-file", str(file), EYELINE_ADMIN_KEY=KEY).startswith("EYELINE_ADMIN_KEY and ")
    assert "another than the API keys" in refusal("--api-keys-file", str(file), EYELINE_ADMIN_KEY=KEY)
    assert refusal("--api-keys-file", str(tmp_path / "none")).startswith("--api-keys-file must be a file that can be")


@pytest.mark.parametrize("text", ["1", "true", "yes", "on"])
def test_words_for_true(text: str) -> None:
    """A switch is turned on by any of the usual words."""
    assert load_settings(["--no-warmup"], {"EYELINE_DOCS": text}).docs is True


def test_model_forms(tmp_path: Path) -> None:
    """A model is a folder, a bare name under the weights folder, or name=folder; the first is the default."""
    folder = str(tmp_path / "base")
    argv = ["--weights-dir", "/w", "--model", folder, "--model", "mini", "--model", "c=/x/y", "--model", "d=mini"]
    assert load_settings(argv, {}).model == (
        ModelSpec("base", Path(folder)),
        ModelSpec("mini", Path("/w/mini")),
        ModelSpec("c", Path("/x/y")),
        ModelSpec("d", Path("/w/mini")),
    )


def test_model_variable_is_comma_separated() -> None:
    """EYELINE_MODEL="a=dir,b=dir" names two models; blanks around the commas are dropped."""
    settings = load_settings([], {"EYELINE_MODEL": "a=/x, b=/y", "EYELINE_WEIGHTS_DIR": "/w"})
    assert settings.model == (ModelSpec("a", Path("/x")), ModelSpec("b", Path("/y")))


def test_existing_folder_wins_over_weights_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name that is a folder here is that folder, not one under the weights folder."""
    (tmp_path / "mini").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_settings(["--model", "mini", "--weights-dir", "/w"], {}).model[0].folder == Path("mini")
    monkeypatch.chdir("/")
    assert load_settings(["--model", "mini", "--weights-dir", "/w"], {}).model[0].folder == Path("/w/mini")


def test_model_folder_corner_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trailing slash, ".", and an equals sign after a slash are parts of a folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    texts = ["./a/", ".", "/data/run=3/b"]
    specs = [load_settings(["--model", text], {}).model[0] for text in texts]
    assert [spec.name for spec in specs] == ["a", "here", "b"]
    assert specs[2].folder == Path("/data/run=3/b")


def test_model_default_follows_weights_dir() -> None:
    """The default model is looked up in the weights folder that was given."""
    assert load_settings([], {"EYELINE_WEIGHTS_DIR": "/w"}).model[0].folder == Path("/w/eyeline-base")


@pytest.mark.parametrize("models", ["a=/x,a=/y", "/x/base,/y/base", "mini,mini"])
def test_duplicate_model_names_are_refused(models: str) -> None:
    """Two models of one name could not be told apart."""
    assert "comes twice" in refusal(EYELINE_MODEL=models)


@pytest.mark.parametrize("text", ["", "a=", ",", "a=/x,,b=/y", "bad name", "a b=/x", "=/x", "/", "a\0b", "_x=/m"])
def test_unusable_models_are_refused(text: str) -> None:
    """A model without a folder, or with a name that no path could carry, is refused."""
    message = refusal("--model", text) if "," not in text else refusal(EYELINE_MODEL=text)
    assert message.startswith(("--model must", "EYELINE_MODEL must"))


def test_no_setting_in_seconds_is_endless() -> None:
    """Each has a day as its upper bound, which it may be and which its documentation has; timers take no 1e300."""
    names = [name for name in NAMES if name.endswith("_seconds")]
    assert len(names) == 5
    for name in names:
        assert getattr(Settings(**{name: 86_400}), name) == 86_400
        with pytest.raises(ValidationError, match="86400"):
            Settings(**{name: 86_401})
        assert "At most a day." in (Settings.model_fields[name].description or "")


@pytest.mark.parametrize(
    ("flag", "value", "limit"),
    [
        ("port", "70000", "65535"),
        ("port", "-1", "0"),
        ("port", "http", "integer"),
        ("host", "", "character"),
        ("threads", "0", "1"),
        ("threads", "5000", "1024"),
        ("batch-tokens", "0", "1"),
        ("batch-attention-values", "0", "1"),
        ("max-body-bytes", "-5", "1"),
        ("max-body-bytes", "4MiB", "integer"),
        ("max-texts", "0", "1"),
        ("max-texts", "1.5", "integer"),
        ("max-text-characters", "0", "1"),
        ("max-attention-values-list", "0", "1"),
        ("max-attention-values-binary", "0", "1"),
        ("max-attention-values-computed", "0", "1"),
        ("max-queue-texts", "0", "1"),
        ("max-queue-tokens", "0", "1"),
        ("max-key-share", "0", "greater than 0"),
        ("max-key-share", "1.1", "1"),
        ("max-key-share", "nan", "finite"),
        ("request-timeout-seconds", "0", "greater than 0"),
        ("request-timeout-seconds", "inf", "finite"),
        ("request-timeout-seconds", "1e300", "less than or equal to 86400"),
        ("hang-seconds", "1e300", "less than or equal to 86400"),
        ("hang-seconds", "0.5", "greater than or equal to 1"),
        ("shutdown-grace-seconds", "1e300", "less than or equal to 86400"),
        ("drain-delay-seconds", "86400.1", "less than or equal to 86400"),
        ("slow-request-seconds", "1e300", "less than or equal to 86400"),
        ("shutdown-grace-seconds", "-1", "0"),
        ("shutdown-grace-seconds", "nan", "finite"),
        ("drain-delay-seconds", "-1", "0"),
        ("dtype", "int4", "'bfloat16'"),
        ("special-tokens", "drop", "'parse'"),
        ("log-level", "INFO", "'info'"),
        ("device", "gpu", "cuda:N"),
        ("device", "cuda:x", "cuda:N"),
    ],
)
def test_wrong_values_are_named(flag: str, value: str, limit: str) -> None:
    """A refusal names where the value came from, the limit and the value, for a flag and for a variable."""
    by_flag = refusal(f"--{flag}", value)
    assert by_flag.startswith(f"--{flag} must ")
    assert limit in by_flag
    assert repr(value) in by_flag
    if value:
        variable = "EYELINE_" + flag.replace("-", "_").upper()
        assert refusal(**{variable: value}).startswith(f"{variable} must ")


def test_wrong_switch_is_named() -> None:
    """A switch that is neither on nor off is refused."""
    assert refusal(EYELINE_WARMUP="maybe") == "EYELINE_WARMUP must be a valid boolean, not 'maybe'."


def test_long_values_are_cut() -> None:
    """A value of any length makes a short message."""
    assert len(refusal(EYELINE_PORT="9" * 10_000)) < 200
    assert len(refusal(EYELINE_DEVICE="x\n" * 10_000)) < 400


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (("max-texts", "11"), ("max-queue-texts", "10")),
        (("max-attention-values-list", "11"), ("max-attention-values-binary", "10")),
        (("batch-tokens", "11"), ("max-queue-tokens", "10")),
    ],
)
def test_contradictions_are_refused(lower: tuple[str, str], upper: tuple[str, str]) -> None:
    """Two values that contradict one another are refused by both their names; equal values are fine."""
    message = refusal(f"--{lower[0]}", lower[1], f"--{upper[0]}", upper[1])
    assert f"--{lower[0]} (EYELINE_" in message
    assert f"--{upper[0]} (EYELINE_" in message
    assert "11" in message
    assert "10" in message
    assert load_settings([f"--{lower[0]}", "10", f"--{upper[0]}", "10"], {})


def test_port_zero_is_allowed() -> None:
    """Port 0 asks for any free port."""
    assert load_settings(["--port", "0"], {}).port == 0


def test_unknown_flags_are_refused() -> None:
    """A misspelt or shortened flag, a stray word and a missing value are refused without ending the process."""
    assert "--prot" in refusal("--prot", "1")
    assert "--max-text" in refusal("--max-text", "5")
    assert "extra" in refusal("extra")
    assert "--port" in refusal("--port")


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("EYELINE_MAX_QUEUE_TEXT", "EYELINE_MAX_QUEUE_TEXTS"),
        ("EYELINE_THREAD", "EYELINE_THREADS"),
        ("EYELINE_port", "EYELINE_PORT"),
        ("EYELINE_MODELS", "EYELINE_MODEL"),
    ],
)
def test_misspelt_variable_stops_the_start(variable: str, meant: str) -> None:
    """A variable with our prefix that is no setting is named with the nearest ones that are, even when it is empty."""
    message = refusal(**{variable: "5"})
    assert message.startswith(f"{variable} is not a setting: did you mean ")
    assert meant in message
    assert refusal(**{variable: ""}) == message


def test_unknown_variable_without_a_near_one() -> None:
    """A variable that resembles none is refused too."""
    assert refusal(EYELINE_XQZ="1") == "EYELINE_XQZ is not a setting: eyeline serve --help lists those there are."


def test_other_variables_are_left_alone() -> None:
    """Variables without the prefix, and the one that docker-compose.yml reads, stop nothing."""
    environ = {"PATH": "/bin", "EYELINER": "x", "eyeline_port": "1", "EYELINE_PUBLISHED_PORT": "9000"}
    assert load_settings([], environ) == Settings()


@pytest.mark.parametrize("variable", KUBERNETES_ENVIRONMENT)
def test_kubernetes_variables_are_ignored(variable: str) -> None:
    """What Kubernetes injects for a Service called eyeline or eyeline-something stops nothing and sets nothing."""
    assert load_settings([], {variable: KUBERNETES_ENVIRONMENT[variable]}) == Settings()


@pytest.mark.parametrize(
    "variable",
    [
        "EYELINE_PORT_8080",
        "EYELINE_PORT_8080_ICMP",
        "EYELINE_PORT_8080_TCP_HOST",
        "EYELINE_SERVICE",
        "EYELINE_APP_HOST",
    ],
)
def test_what_only_resembles_kubernetes_is_refused(variable: str) -> None:
    """The exception is as narrow as what Kubernetes writes."""
    assert variable in refusal(**{variable: "1"})


def test_port_of_another_name_needs_an_address() -> None:
    """EYELINE_APP_PORT=80 is nobody's: Kubernetes would have written tcp://..."""
    assert "EYELINE_APP_PORT" in refusal(EYELINE_APP_PORT="80")


@pytest.mark.parametrize("address", ["tcp://1.2.3.4:80", "udp://1.2.3.4:53", "tcp://[fd00::1]:80"])
def test_port_from_kubernetes_is_explained(address: str) -> None:
    """EYELINE_PORT=tcp://... stops the start with the cause and the ways out, unless --port decides."""
    message = refusal(EYELINE_PORT=address, **KUBERNETES_ENVIRONMENT)
    for part in ("EYELINE_PORT", address, "Kubernetes", "Service", "enableServiceLinks: false", "rename", "--port"):
        assert part in message
    assert load_settings(["--port", "9000"], {"EYELINE_PORT": address}).port == 9000


def test_subcommand_parser() -> None:
    """The flags can be added to any parser, whose other arguments do not matter."""
    parser = argparse.ArgumentParser()
    serve = parser.add_subparsers(dest="command").add_parser("serve")
    add_arguments(serve)
    namespace = parser.parse_args(["serve", "--port", "81", "--no-warmup"])
    settings = from_arguments(namespace, {"EYELINE_HOST": "::1"})
    assert (settings.port, settings.warmup, settings.host) == (81, False, "::1")


def test_help_documents_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """--help shows each flag with its description, default and variable, at any width."""
    for columns in ("40", "100000"):
        monkeypatch.setenv("COLUMNS", columns)
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        text = parser.format_help()
    for name, info in Settings.model_fields.items():
        if name in SECRETS:
            assert f"EYELINE_{name.upper()}]" not in text
            continue
        assert "--" + name.replace("_", "-") in text
        assert f"variable: EYELINE_{name.upper()}]" in text
        assert info.description is not None
        assert info.description in text
    assert "[default: 8080; variable: EYELINE_PORT]" in text


def test_table_documents_everything() -> None:
    """The Markdown table has one row of four cells per field, in the fields' order."""
    header, rule, *rows = settings_table().splitlines()
    assert header == "| Flag | Variable | Default | Meaning |"
    assert rule == "| --- | --- | --- | --- |"
    assert [row.replace(r"\|", "").split(" | ")[1] for row in rows] == [f"`EYELINE_{name.upper()}`" for name in NAMES]
    assert all(row.replace(r"\|", "").count("|") == 5 for row in rows)
    assert "| `--port PORT` | `EYELINE_PORT` | 8080 | TCP port" in settings_table()
    assert "| `--warmup`, `--no-warmup` | `EYELINE_WARMUP` | on |" in settings_table()
    assert "| `EYELINE_THREADS` | from the cgroup's CPU quota and the CPU affinity |" in settings_table()


@pytest.mark.parametrize("name", NAMES)
def test_no_default_is_shown_as_none(name: str) -> None:
    """Where the default is worked out later, the documentation says how."""
    row = settings_table().splitlines()[2 + NAMES.index(name)].replace(r"\|", "")
    assert row.split(" | ")[2] not in {"None", ""}

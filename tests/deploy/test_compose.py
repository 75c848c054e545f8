"""What runs can write, gain and reach no more than it needs; the files agree with the server and with one another."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app.options import Settings
from app.settings import OTHER_VARIABLES
from app.version import VERSION

ROOT = Path(__file__).parents[2]
BASE = ROOT / "docker-compose.yml"
OVERRIDES = sorted((ROOT / "deploy").glob("compose.*.yml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text()
HAPROXY = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()

VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::?[-?]([^}]*))?\}")


class ComposeLoader(yaml.SafeLoader):
    """Reads ``!reset`` as what it leaves: nothing of the file before."""


ComposeLoader.add_constructor("!reset", lambda loader, node: loader.construct_sequence(node))


def read(path: Path) -> dict[str, Any]:
    """Parse a compose file, each variable with its default."""
    text = VARIABLE.sub(lambda match: match[2] or "", path.read_text())
    parsed: dict[str, Any] = yaml.load(text, ComposeLoader)
    return parsed


def services() -> list[tuple[str, dict[str, Any]]]:
    """Every service that some file defines, as opposed to changes."""
    found = [(name, service) for path in (BASE, *OVERRIDES) for name, service in read(path)["services"].items()]
    return [(name, service) for name, service in found if "restart" in service]


SERVICES = services()
NAMED = pytest.mark.parametrize(("name", "service"), SERVICES, ids=[name for name, _ in SERVICES])


def seconds(duration: str) -> float:
    """Read a duration such as 45s."""
    assert duration.endswith("s")
    return float(duration[:-1])


def test_the_check_pulls_what_it_starts_and_does_not_build() -> None:
    """checks.py starts services with --pull never, so that run.sh must have fetched each image but the server's."""
    started = {name for name, service in read(BASE)["services"].items() if "profiles" not in service}
    for arguments in re.findall(r"\.up\((.*)\)", (ROOT / "deploy/check/checks.py").read_text()):
        started |= {name for name, _ in SERVICES} & set(re.findall(r'"([^"]+)"', arguments))
    (pulled,) = re.findall(r" pull (.+)$", (ROOT / "deploy/check/run.sh").read_text(), re.MULTILINE)
    assert {name for name, _ in SERVICES} & set(pulled.split()) == started - {"app"}


def test_the_services_are_these() -> None:
    """A service that is not found here is not checked here."""
    assert sorted(name for name, _ in SERVICES) == ["alertmanager", "app", "balancer", "grafana", "prometheus"]


@pytest.mark.parametrize("path", [BASE, *OVERRIDES], ids=lambda path: path.name)
def test_the_files_are_valid(path: Path) -> None:
    """Each file is a compose file by the specification's own schema."""
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validate(read(path), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**read(path), "service": {}}, schema)


@NAMED
def test_a_service_is_confined(name: str, service: dict[str, Any]) -> None:
    """Whoever gets into a container finds no disk to write to, no privilege to use, and an end to what it may take."""
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert service["mem_limit"]
    assert service["logging"] == {"driver": "local"}
    assert service["restart"] == "unless-stopped"


@NAMED
def test_ports_are_this_machines_alone(name: str, service: dict[str, Any]) -> None:
    """Nobody else reaches what is published, unless whoever deploys says so."""
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@NAMED
def test_images_have_a_version(name: str, service: dict[str, Any]) -> None:
    """What starts today starts next year."""
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"])


@NAMED
def test_what_is_mounted_is_there(name: str, service: dict[str, Any]) -> None:
    """Docker makes an empty folder, owned by root, of a path that is not there."""
    sources = [volume.split(":") for volume in service.get("volumes", [])]
    for source, _, *mode in sources:
        if source.startswith("./"):
            assert (ROOT / source).exists()
            assert mode == ["ro"]
        else:
            assert source in read(BASE)["volumes"]


def test_the_version_is_the_servers() -> None:
    """The image's name and label say which version is inside."""
    assert read(BASE)["services"]["app"]["image"] == f"eyeline:{VERSION}"
    assert read(ROOT / "deploy/compose.gpu.yml")["services"]["app"]["image"] == f"eyeline:{VERSION}-cuda"
    assert f'org.opencontainers.image.version="{VERSION}"' in DOCKERFILE


def test_the_settings_exist() -> None:
    """A variable of ours that a file sets or asks for is a setting, or is known not to be one."""
    text = "".join(path.read_text() for path in (BASE, *OVERRIDES)) + DOCKERFILE
    known = {f"EYELINE_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    assert set(re.findall(r"\bEYELINE_[A-Z_]+\b", text)) <= known


@pytest.mark.parametrize("override", [None, "deploy/compose.scale.yml"])
def test_docker_waits_longer_than_the_server(override: str | None) -> None:
    """Docker kills what has not stopped in time: later than the server itself gives up."""
    grace = seconds(read(BASE)["services"]["app"]["stop_grace_period"])
    changed = read(ROOT / override)["services"]["app"]["environment"] if override else {}
    settings = Settings()
    delay = float(changed.get("EYELINE_DRAIN_DELAY_SECONDS", settings.drain_delay_seconds))
    assert grace >= delay + settings.shutdown_grace_seconds + 5


def test_the_balancer_notices_before_a_replica_closes() -> None:
    """A stopping replica takes requests until the balancer has seen, at its slowest, that it is not ready."""
    delay = read(ROOT / "deploy/compose.scale.yml")["services"]["app"]["environment"]["EYELINE_DRAIN_DELAY_SECONDS"]
    checks = re.search(r"default-server inter (\d+)s fastinter \d+ms fall (\d+) ", HAPROXY)
    assert checks is not None
    assert float(delay) >= 2 * int(checks[1]) * int(checks[2])


def test_the_balancer_retries_only_what_was_not_begun() -> None:
    """A request that may have been worked on is never sent twice; one that was refused is, on another replica."""
    assert re.findall(r"^\s*retry-on (.+)$", HAPROXY, re.MULTILINE) == ["conn-failure 503"]
    assert re.search(r"^\s*option redispatch 1$", HAPROXY, re.MULTILINE)
    # without this, a body that arrives after its head takes the second try away
    assert re.search(r"^\s*option http-buffer-request$", HAPROXY, re.MULTILINE)


def test_the_balancers_own_answers_are_problems() -> None:
    """With no replica left callers get what a server that is not ready says, and when to come back."""
    answer = re.search(
        r"http-error status 503 content-type application/problem\+json string '(.+)' hdr Retry-After 1", HAPROXY
    )
    assert answer is not None
    problem = json.loads(answer[1])
    assert (problem["status"], problem["code"], problem["type"]) == (503, "not_ready", "urn:eyeline:problem:not_ready")

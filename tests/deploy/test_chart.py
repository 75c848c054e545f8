"""Claims about deploy/helm/eyeline: what it renders is valid, hardened, and fits the server."""

import json
import math
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from app.settings import Settings, load_settings
from tests.deploy.chart import CHART, VALUES, Manifest, RefusedError, needs_helm, only, render, run_helm
from tests.deploy.queries import ROOT, exported, rules

pytestmark = needs_helm

KUBERNETES = ("1.27", "1.33", "1.37")
"""The oldest that Chart.yaml names, one in between, the newest whose schemas there are."""

OF_THE_OPERATOR = "monitoring.coreos.com/v1"
"""Kinds that Kubernetes has no schema of; what is in them is tested one by one."""

SET_BY_THE_CHART = {
    "host": "0.0.0.0, or no probe could reach it",
    "port": "8080, which manifests name",
    "model": "model.names",
    "weights_dir": "by model.source",
    "device": "by gpu.enabled",
    "api_keys": "a secret, never a value",
    "api_keys_file": "apiKeys",
    "admin_key": "a secret, never a value",
    "admin_key_file": "adminKey",
    "tls_certificate": "never: TLS is the ingress's or the mesh's",
    "tls_key": "never, likewise",
}
"""Settings that are no values under ``settings``, each with what decides it."""

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())


def pod_of(manifests: list[Manifest]) -> Manifest:
    """The Deployment's pod."""
    spec: Manifest = only(manifests, "Deployment")["spec"]["template"]["spec"]
    return spec


def server_of(manifests: list[Manifest]) -> Manifest:
    """The container that serves."""
    containers = pod_of(manifests)["containers"]
    assert [container["name"] for container in containers] == ["eyeline"]
    server: Manifest = containers[0]
    return server


def settings_of(manifests: list[Manifest]) -> Settings:
    """What the server reads from the container's arguments and environment; the files of keys are not there."""
    server = server_of(manifests)
    environment = {one["name"]: one["value"] for one in server["env"] if not one["name"].endswith("_FILE")}
    assert server["args"][0] == "serve"
    return load_settings(server["args"][1:], environment)


@pytest.mark.parametrize("values", VALUES)
def test_helm_finds_nothing_to_complain_of(values: str) -> None:
    """`helm lint` is content, warnings included."""
    result = run_helm("lint", "--strict", CHART, "--values", VALUES[values])
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", VALUES)
def test_manifests_are_what_kubernetes_takes(values: str, version: str) -> None:
    """Each field exists in Kubernetes' own schemas, strictly: none is misspelt or in the wrong place."""
    for manifest in render(values):
        if manifest["apiVersion"] != OF_THE_OPERATOR:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_values_render_what_they_turn_on() -> None:
    """By default what every cluster has; the rest when it is asked for."""
    always = {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"}
    assert {manifest["kind"] for manifest in render()} == always
    everything = always | {"ConfigMap", "HorizontalPodAutoscaler", "PrometheusRule", "ServiceMonitor"}
    assert {manifest["kind"] for manifest in render("full")} == everything


@pytest.mark.parametrize("values", VALUES)
def test_pods_are_hardened(values: str) -> None:
    """No root, no writable root, no capability, no token, the image's user, and no variables of Services."""
    pod = pod_of(render(values))
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
    assert f"USER {user}:{group}" in (ROOT / "Dockerfile").read_text()
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("values", VALUES)
def test_the_server_reads_its_settings(values: str) -> None:
    """What the container says is what the server takes: no unknown variable, no number that it cannot read."""
    settings = settings_of(render(values))
    assert (settings.host, settings.port) == ("0.0.0.0", 8080)


def test_settings_arrive_as_they_were_written() -> None:
    """Large numbers, which Helm holds as floating-point ones, fractions, booleans and lists among them."""
    settings = settings_of(render("full"))
    assert settings.batch_attention_values == 8_000_000
    assert settings.max_queue_tokens == 400_000
    assert settings.request_timeout_seconds == 12.5
    assert settings.viewer is False
    assert settings.max_key_share == 0.5
    assert settings.cors_origins == ("https://app.example", "https://app.example:8443")
    assert settings.threads == 4
    assert [spec.name for spec in settings.model] == ["all-MiniLM-L6-v2", "eyeline-base"]
    assert [str(spec.folder) for spec in settings.model] == ["/models/all-MiniLM-L6-v2", "/app/weights/eyeline-base"]


def test_every_setting_is_a_value_or_the_charts_own() -> None:
    """A new setting is added to values.schema.json, or to the list above with what decides it."""
    assert set(SCHEMA["properties"]["settings"]["properties"]) == set(Settings.model_fields) - set(SET_BY_THE_CHART)
    assert set(SET_BY_THE_CHART) <= set(Settings.model_fields)


BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def test_numbers_have_the_servers_bounds() -> None:
    """What the server would not start with is refused before it reaches a pod; what it takes is not."""
    taken = Settings.model_json_schema()["properties"]
    for name, schema in SCHEMA["properties"]["settings"]["properties"].items():
        own = next((part for part in taken[name].get("anyOf", [taken[name]]) if part.get("type") != "null"), {})
        assert {key: schema.get(key) for key in BOUNDS} == {key: own.get(key) for key in BOUNDS}, name


@pytest.mark.parametrize(("drain", "grace"), [(10, 30), (0, 0), (7.5, 45), (120, 600.2)])
def test_a_pod_has_time_to_stop(drain: float, grace: float) -> None:
    """The kill comes only after the drain and the grace that the server gives itself."""
    manifests = render(overrides={"settings": {"drain_delay_seconds": drain, "shutdown_grace_seconds": grace}})
    settings = settings_of(manifests)
    assert (settings.drain_delay_seconds, settings.shutdown_grace_seconds) == (drain, grace)
    seconds = pod_of(manifests)["terminationGracePeriodSeconds"]
    assert seconds == math.ceil(drain) + math.ceil(grace) + 10
    assert "lifecycle" not in server_of(manifests), "the server waits by itself; a hook would wait once more"


def test_without_the_two_settings_the_servers_defaults_count() -> None:
    """A value that was taken away is the server's default, here as there."""
    manifests = render(overrides={"settings": {"drain_delay_seconds": None, "shutdown_grace_seconds": None}})
    settings = settings_of(manifests)
    expected = settings.drain_delay_seconds + settings.shutdown_grace_seconds + 10
    assert pod_of(manifests)["terminationGracePeriodSeconds"] == expected


def test_probes_ask_routes_that_are_there() -> None:
    """Starting and living by one route, readiness by the other, as the server means them."""
    routes = (ROOT / "app/routes/health.py").read_text()
    server = server_of(render())
    paths = {probe: server[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {
        "startupProbe": "/health/live",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }
    assert all(f'"{path}"' in routes for path in paths.values())
    startup = server_of(render(overrides={"probes": {"startupSeconds": 301}}))["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 301


@pytest.mark.parametrize("values", VALUES)
def test_everything_finds_the_pods(values: str) -> None:
    """Whatever selects pods selects these, and ports are named as the container names them."""
    manifests = render(values)
    deployment = only(manifests, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in server_of(manifests)["ports"]}
    assert ports == {"http": 8080}
    selectors = [deployment["spec"]["selector"]["matchLabels"], only(manifests, "Service")["spec"]["selector"]]
    selectors += [rule["labelSelector"]["matchLabels"] for rule in pod_of(manifests)["topologySpreadConstraints"]]
    for manifest in manifests:
        if manifest["kind"] == "PodDisruptionBudget":
            selectors.append(manifest["spec"]["selector"]["matchLabels"])
        if manifest["kind"] == "NetworkPolicy":
            selectors.append(manifest["spec"]["podSelector"]["matchLabels"])
            assert manifest["spec"]["ingress"][0]["ports"] == [{"port": "http", "protocol": "TCP"}]
        if manifest["kind"] == "HorizontalPodAutoscaler":
            target = manifest["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
            assert "replicas" not in deployment["spec"], "the autoscaler's number would be set back at each upgrade"
        if manifest["kind"] == "ServiceMonitor":
            service = only(manifests, "Service")
            assert manifest["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
            assert manifest["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert len(selectors) >= 4
    assert all(selector and selector.items() <= labels.items() for selector in selectors)


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("eyeline", "eyeline"),
        ("my-eyeline-2", "my-eyeline-2"),
        ("search", "search-eyeline"),
        ("a" * 53, "a" * 53 + "-eyeline"),
    ],
)
def test_alerts_find_the_job(release: str, name: str) -> None:
    """The operator names a job after its Service, and alerts look for jobs with eyeline in their name."""
    for manifest in render("default", release=release):
        assert manifest["metadata"]["name"] == name
        assert len(name) <= 63
    matchers = {match for rule in rules() for match in re.findall(r'job=~"([^"]+)"', rule["expr"])}
    assert len(matchers) == 1
    assert re.fullmatch(matchers.pop(), name)


def test_the_autoscaler_asks_for_an_exported_metric() -> None:
    """The queue of each pod, and CPU; on a GPU the queue alone."""
    metrics = only(render("full"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert [metric["type"] for metric in metrics] == ["Pods", "Resource"]
    assert metrics[0]["pods"]["metric"]["name"] in exported()
    assert [metric["type"] for metric in only(render("gpu"), "HorizontalPodAutoscaler")["spec"]["metrics"]] == ["Pods"]


def test_a_gpu_is_asked_for_and_used() -> None:
    """One for each pod, on nodes that have it and keep others away; and the server is told."""
    manifests = render("gpu")
    pod = pod_of(manifests)
    assert server_of(manifests)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert settings_of(manifests).device == "cuda"
    assert settings_of(render()).device == "cpu"


def test_the_example_of_a_gpu_is_one_that_renders() -> None:
    """The values in docs/kubernetes.md are those of ci/gpu-values.yaml, but for the registry and the number of pods."""
    (text,) = re.findall(r"```yaml\n(image:.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    ours, documented = yaml.safe_load(VALUES["gpu"].read_text()), yaml.safe_load(text)
    assert documented["image"].pop("repository")
    assert ours.pop("replicas")
    for number in ("minReplicas", "maxReplicas"):
        assert ours["autoscaling"].pop(number)
    assert documented == ours


def test_models_come_from_where_it_says() -> None:
    """From the image nothing is mounted; a volume is mounted read-only; an init container fetches what is not there."""
    in_image = pod_of(render())
    assert [volume["name"] for volume in in_image["volumes"]] == ["tmp"]
    assert "initContainers" not in in_image
    volume = next(volume for volume in pod_of(render("full"))["volumes"] if volume["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    mount = next(mount for mount in server_of(render("full"))["volumeMounts"] if mount["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True, "subPath": "encoders"}
    fetching = pod_of(render("fetch"))["initContainers"]
    assert [container["args"] for container in fetching] == [["weights", "fetch", "bge-small-zh-v1.5"]]
    known = json.loads((ROOT / "app/manifest.json").read_text())
    assert "bge-small-zh-v1.5" in json.dumps(known)


def test_what_was_fetched_is_found_whatever_the_claims_folder() -> None:
    """`model.volume` is about the claim alone: the server reads where the init container has written."""
    manifests = render("fetch", overrides={"model": {"volume": {"subPath": "encoders"}}})
    writers = pod_of(manifests)["initContainers"]
    mounts = [next(one for one in each["volumeMounts"] if one["name"] == "models") for each in writers]
    assert mounts == [{"name": "models", "mountPath": "/models"}]
    mount = next(mount for mount in server_of(manifests)["volumeMounts"] if mount["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_the_network_is_closed_but_for_the_port() -> None:
    """Nothing leaves a pod that serves from its image; one that fetches may ask for names and by HTTPS."""
    assert only(render(), "NetworkPolicy")["spec"]["egress"] == []
    egress = only(render("fetch"), "NetworkPolicy")["spec"]["egress"]
    assert [(port["port"], port["protocol"]) for port in egress[0]["ports"]] == [(53, "UDP"), (53, "TCP"), (443, "TCP")]
    policy = only(render("full"), "NetworkPolicy")["spec"]
    assert len(policy["ingress"][0]["from"]) == 2
    assert policy["egress"][0]["ports"] == [{"port": 4318, "protocol": "TCP"}]


def test_keys_come_from_secrets() -> None:
    """As files that only the server's group can read, where the server looks for them."""
    manifests = render("full")
    environment = {one["name"]: one["value"] for one in server_of(manifests)["env"]}
    keys = next(volume for volume in pod_of(manifests)["volumes"] if volume["name"] == "keys")["projected"]
    assert keys["defaultMode"] == 0o440
    files = {item["path"]: one["secret"]["name"] for one in keys["sources"] for item in one["secret"]["items"]}
    assert files == {"api-keys": "search-keys", "admin-key": "search-admin"}
    assert environment["EYELINE_API_KEYS_FILE"] == "/run/secrets/eyeline/api-keys"
    assert environment["EYELINE_ADMIN_KEY_FILE"] == "/run/secrets/eyeline/admin-key"
    endpoint = only(manifests, "ServiceMonitor")["spec"]["endpoints"][0]
    assert endpoint["authorization"]["credentials"] == {"name": "search-metrics", "key": "metrics-key"}


def test_rules_are_those_of_the_repository() -> None:
    """Recording rules and alerts as Prometheus of the compose file reads them; only the links lead elsewhere."""
    groups = only(render("full"), "PrometheusRule")["spec"]["groups"]
    text = json.dumps(groups[1:])
    assert "https://wiki.example/eyeline/docs/operations.md#eyelinedown" in text
    ours = [
        group
        for name in ("recording.yml", "alerts.yml")
        for group in yaml.safe_load((ROOT / "deploy/prometheus/rules" / name).read_text())["groups"]
    ]
    assert json.loads(text.replace("https://wiki.example/eyeline/", "")) == ours


def test_objectives_are_those_of_the_repository_by_default() -> None:
    """The chart's own group has the file's numbers, and the memory limit that is in force."""
    ours = yaml.safe_load((ROOT / "deploy/prometheus/rules/objectives.yml").read_text())["groups"]
    assert only(render(overrides={"prometheusRule": {"enabled": True}}), "PrometheusRule")["spec"]["groups"][:1] == ours
    changed = only(render("full"), "PrometheusRule")["spec"]["groups"][0]["rules"]
    assert [rule["record"] for rule in changed] == [rule["record"] for rule in ours[0]["rules"]]
    assert [rule["expr"] for rule in changed] == ["vector(0.005)", "vector(0.5)", "vector(2)", "vector(3221225472)"]


def test_the_dashboard_is_that_of_the_repository() -> None:
    """To the letter, with the label that Grafana's sidecar looks for."""
    config_map = only(render("full"), "ConfigMap")
    assert json.loads(config_map["data"]["eyeline.json"]) == json.loads(
        (ROOT / "deploy/grafana/dashboards/eyeline.json").read_text()
    )
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_files_are_links_and_not_copies() -> None:
    """A copy would grow old; `helm package` puts what a link leads to into the archive."""
    files = sorted((CHART / "files").iterdir())
    assert [path.name for path in files] == ["alerts.yml", "dashboard.json", "recording.yml"]
    assert all(path.is_symlink() and not Path(path.readlink()).is_absolute() for path in files)


def test_a_packaged_chart_is_whole(tmp_path: Path) -> None:
    """What is pushed to a registry renders as the folder does, without the folder."""
    assert run_helm("package", CHART, "--destination", tmp_path).returncode == 0
    (archive,) = tmp_path.glob("*.tgz")
    packed = run_helm("template", "my", archive, "--kube-version", "1.33.0", "--values", VALUES["full"])
    folder = run_helm("template", "my", CHART, "--kube-version", "1.33.0", "--values", VALUES["full"])
    assert packed.returncode == 0, packed.stderr
    assert packed.stdout == folder.stdout


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"settings": {"drain_delay": 3}}, "drain_delay"),
        ({"settings": {"threads": 3}}, "settings.threads is 3, but resources.limits.cpu allows 2 cores"),
        ({"settings": {"dtype": "float8"}}, "dtype"),
        ({"settings": {"max_texts": "many"}}, "max_texts"),
        ({"replicaCount": 3}, "replicaCount"),
        ({"fullnameOverride": "embeddings"}, "fullnameOverride"),
        ({"model": {"source": "s3"}}, "model.source"),
        ({"model": {"source": "volume"}}, "model.volume.claimName"),
        ({"model": {"names": []}}, "model.names"),
        ({"model": {"names": ["a,b"]}}, "model.names"),
        ({"resources": {"limits": {"memory": "2GB"}}}, "resources.limits.memory"),
        ({"resources": {"limits": {"cpu": None}}}, "cpu is required"),
        ({"strategy": {"maxSurge": 0}}, "strategy.maxSurge and strategy.maxUnavailable are both 0"),
        ({"strategy": {"maxSurge": "0%"}}, "strategy.maxSurge and strategy.maxUnavailable are both 0"),
        ({"objectives": {"errorRatio": 1.5}}, "objectives.errorRatio"),
        (
            {"autoscaling": {"enabled": True, "queueTokens": None, "cpuPercent": None}},
            "queueTokens, cpuPercent or both",
        ),
        (
            {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}},
            "minReplicas is 5, but maxReplicas is 2",
        ),
        (
            {"serviceMonitor": {"enabled": True}, "apiKeys": {"existingSecret": "keys"}},
            "serviceMonitor.authorization.existingSecret",
        ),
        ({"prometheusRule": {"runbookBase": "wiki"}}, "prometheusRule.runbookBase"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_would_not_work_is_refused(overrides: dict[str, Any], reason: str) -> None:
    """Before anything reaches a cluster, with the value's name."""
    with pytest.raises(RefusedError, match=re.escape(reason)):
        render(overrides=overrides)


def test_every_value_is_documented_and_in_the_schema() -> None:
    """values.yaml names each value that the schema knows, under a comment; the schema itself is a valid one."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) - {"global"} == set(DEFAULTS)
    for name, value in DEFAULTS.items():
        properties = SCHEMA["properties"][name].get("properties")
        if properties is not None and name != "settings":
            assert set(properties) == set(value), name
    blocks = re.split(r"\n\n", (CHART / "values.yaml").read_text())
    for name in DEFAULTS:
        (block,) = (block for block in blocks if re.search(rf"^{name}:", block, re.MULTILINE))
        assert "#" in block, name


def test_versions_agree() -> None:
    """The chart deploys the image that this server is in."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert chart["appVersion"] == project[1]
    assert server_of(render())["image"] == f"eyeline:{project[1]}"
    assert f"image: eyeline:{project[1]}" in (ROOT / "docker-compose.yml").read_text()

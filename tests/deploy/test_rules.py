"""Claims about deploy/prometheus/: rules that load, fire when they must, and lead to a runbook."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.queries import ROOT, RULES, complaints, known, labels_of, legend_labels, rules

PROMETHEUS = ROOT / "deploy/prometheus"
RULE_TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RUNBOOK = ROOT / "docs/operations.md"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed; Debian has it in the package prometheus, and .ci/setup installs that",
)


def promtool(*arguments: str | Path) -> None:
    """Run promtool, and show what it says when it is not content."""
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_prometheus_reads_the_configuration() -> None:
    """The file that Prometheus starts with is valid, and finds the rules."""
    promtool("check", "config", PROMETHEUS / "prometheus.yml")


@needs_promtool
@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_prometheus_reads_the_rules(path: Path) -> None:
    """Every query parses and every template expands, without a lint."""
    promtool("check", "rules", "--lint-fatal", path)


@needs_promtool
@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.name)
def test_rules_behave(path: Path) -> None:
    """Recorded figures are right; alerts fire when they must, and only then."""
    promtool("test", "rules", path)


def test_every_alert_is_seen_firing_and_silent() -> None:
    """An alert that no test has seen fire may never do so; one that no test has seen silent may never stop."""
    firing: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                (firing if case["exp_alerts"] else silent)[case["alertname"]] += 1
    assert firing.keys() == ALERTS.keys()
    assert silent.keys() == ALERTS.keys()


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_name_what_is_exported(rule: dict[str, Any]) -> None:
    """Each metric, label and bounded value in a rule is one that the server shows, and so is each in an annotation."""
    metrics = known()
    assert complaints(rule["expr"], metrics) == []
    shown = set().union(*(legend_labels(text) for text in rule.get("annotations", {}).values()))
    assert shown <= labels_of(rule["expr"], metrics)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_to_do(alert: str) -> None:
    """Each has a severity, a sentence for people, and a link to its entry in the runbook."""
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{alert.lower()}"


def test_the_runbook_has_every_alert_and_no_other() -> None:
    """An entry for each alert, in the order of the rules; an alert that was taken away leaves no entry behind."""
    assert re.findall(r"^### (Eyeline\w+)$", RUNBOOK.read_text(), re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_entry_is_complete(alert: str) -> None:
    """Meaning, what callers see, how to look, what to do; its queries name what is there."""
    entry = re.split(r"^##+ ", RUNBOOK.read_text().split(f"### {alert}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    for part in ("**Meaning.**", "**Callers**", "**Look.**", "**Do.**"):
        assert entry.count(part) == 1, part
    for block in re.findall(r"```promql\n(.*?)```", entry, re.DOTALL):
        for query in block.splitlines():
            assert complaints(query, known()) == []

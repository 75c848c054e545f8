"""Renders the Helm chart with Helm."""

from __future__ import annotations

import functools
import json
import subprocess
from typing import Any

import pytest
import yaml

from deploy.helm.get_helm import MACHINE, MAJOR, installed
from tests.deploy.queries import ROOT

CHART = ROOT / "deploy/helm/eyeline"
VALUES = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*.yaml"))}

HELM = installed() or ROOT / "build/helm"

needs_helm = pytest.mark.skipif(
    not HELM.exists(),
    reason=f"no Helm {MAJOR} on the path, nor in build/, where `make build/helm` puts one on {MACHINE}",
)

Manifest = dict[str, Any]


def run_helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Helm to its end."""
    return subprocess.run([str(HELM), *map(str, arguments)], capture_output=True, text=True, check=False)


@functools.cache
def _rendered(values: str | None, overrides: str, release: str) -> list[Manifest]:
    """Render once for all tests that ask the same."""
    command = ["template", release, CHART, "--kube-version", "1.33.0", "--namespace", "search"]
    if values is not None:
        command += ["--values", VALUES[values]]
    # --set-json is younger than the Helm that the package index has: a file on standard input does the same.
    result = subprocess.run(
        [str(HELM), *map(str, command), "--values", "-"], input=overrides, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RefusedError(result.stderr)
    return [manifest for manifest in yaml.load_all(result.stdout, yaml.CSafeLoader) if manifest]


class RefusedError(Exception):
    """What Helm says when it renders nothing."""


def render(values: str | None = None, overrides: Manifest | None = None, release: str = "my") -> list[Manifest]:
    """Render the chart. The manifests are shared between tests: they are to be read, not changed.

    Parameters
    ----------
    values : str, optional
        The name of a file in the chart's folder ``ci``.
    overrides : dict, optional
        Values over those.
    release : str

    Raises
    ------
    RefusedError
        If Helm refuses.
    """
    return _rendered(values, json.dumps(overrides or {}), release)


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """The one manifest of a kind."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]

"""Claims about deploy/grafana/: the file is what the program writes, and asks for what there is."""

import json
import re
import runpy
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.deploy.queries import ROOT, complaints, exported, expression, known, labels_of, legend_labels

GRAFANA = ROOT / "deploy/grafana"
DASHBOARD = GRAFANA / "dashboards/eyeline.json"
PROGRAM = runpy.run_path(str(GRAFANA / "make_dashboard.py"))
PANELS: list[dict[str, Any]] = PROGRAM["dashboard"]()["panels"]
WITH_QUERIES = [panel for panel in PANELS if panel["type"] != "row"]


def name(panel: dict[str, Any]) -> str:
    """A panel's place and title: two have the same title."""
    return f"{panel['id']}-{panel['title']}"


def test_the_file_is_what_the_program_writes() -> None:
    """Nobody has edited the JSON by hand, nor forgotten to write it again."""
    assert DASHBOARD.read_text() == json.dumps(PROGRAM["dashboard"](), indent=2) + "\n"


@pytest.mark.parametrize("panel", WITH_QUERIES, ids=name)
def test_panels_ask_for_what_is_exported(panel: dict[str, Any]) -> None:
    """Each metric, each label and each bounded value in a query, and each label in a legend."""
    metrics = known()
    for target in panel["targets"]:
        assert complaints(target["expr"], metrics) == []
        assert legend_labels(target["legendFormat"]) <= labels_of(target["expr"], metrics)


def test_variables_and_annotations_ask_for_what_is_exported() -> None:
    """The lists of jobs, instances and models come from metrics that have such labels."""
    metrics = known()
    dashboard = PROGRAM["dashboard"]()
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "model"]
    for variable in dashboard["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert complaints(match[1], metrics) == []
        assert match[2] in labels_of(match[1], metrics)
    for annotation in dashboard["annotations"]["list"]:
        assert complaints(annotation["expr"], metrics) == []


def test_every_variable_is_used_and_defined() -> None:
    """A choice in the head of the page changes what is drawn."""
    queries = " ".join(target["expr"] for panel in WITH_QUERIES for target in panel["targets"])
    assert set(re.findall(r"\$(\w+)", queries)) == {"job", "instance", "model", "__rate_interval"}


def test_every_metric_of_the_server_is_drawn() -> None:
    """What is exported is worth looking at: a new metric wants a panel in deploy/grafana/make_dashboard.py."""
    drawn = " ".join(target["expr"] for panel in WITH_QUERIES for target in panel["targets"])
    families = {re.sub(r"_(bucket|sum|count)$", "", series) for series in exported() if series.startswith("eyeline_")}
    assert len(families) > 15
    assert {family for family in families if family not in drawn} == set()


@pytest.mark.parametrize("panel", WITH_QUERIES, ids=name)
def test_panels_explain_themselves(panel: dict[str, Any]) -> None:
    """Each has a title, a description, a unit, and a legend for each line when there are several."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    if len(panel["targets"]) > 1:
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert all(legends)
        assert len(set(legends)) == len(legends)


def test_panels_lie_side_by_side() -> None:
    """No two overlap, none leaves the grid of 24 columns, and no id comes twice."""
    cells: list[set[tuple[int, int]]] = []
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        rows, columns = range(place["y"], place["y"] + place["h"]), range(place["x"], place["x"] + place["w"])
        cells.append({(row, column) for row in rows for column in columns})
    assert not any(one & other for one, other in combinations(cells, 2))
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_rules_and_dashboard_mean_the_same_requests() -> None:
    """Both leave out the same routes, or the dashboard would show other figures than alerts speak of."""
    recording = (ROOT / "deploy/prometheus/rules/recording.yml").read_text()
    filters = set(re.findall(r'route!~"[^"]+"', recording))
    assert filters == set(re.findall(r'route!~"[^"]+"', PROGRAM["API"]))


def test_provisioning_fits_the_dashboard() -> None:
    """Grafana finds the data source that a dashboard names by its type, and reads the folder that holds it."""
    sources = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert [(source["type"], source["isDefault"]) for source in sources] == [("prometheus", True)]
    providers = yaml.safe_load((GRAFANA / "provisioning/dashboards/eyeline.yml").read_text())["providers"]
    assert [provider["options"]["path"] for provider in providers] == ["/var/lib/grafana/dashboards"]


def test_queries_parse_as_promql() -> None:
    """A query is PromQL once Grafana has put its variables in."""
    for panel in WITH_QUERIES:
        for target in panel["targets"]:
            assert expression(target["expr"])

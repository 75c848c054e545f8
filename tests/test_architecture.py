"""The shape of the code: every module has its tests, no module grows unnoticed, documents name what exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import app.errors
import model.errors
from app.errors import ANSWERS, START_UP_ONLY
from app.metrics import Metrics
from app.settings import Settings, settings_table

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "eyeline", "model")
MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

WITHOUT_TESTS_OF_THEIR_OWN = {
    "app/__init__.py": "a docstring",
    "app/bulk/__init__.py": "a docstring",
    "app/comparison_flows.py": "tests/app/routes/test_explain.py and test_attention.py run them; turns: app/turns.py",
    "app/connection.py": "tests/app/test_attacks.py sends it what hostile callers send",
    "app/routes/__init__.py": "a docstring",
    "app/schemas/__init__.py": "a docstring",
    "eyeline/__init__.py": "names; tests/eyeline/test_import.py imports it alone",
    "eyeline/attention_records.py": "records without code; tests/eyeline/test_replies.py reads each",
    "eyeline/records.py": "records without code; tests/eyeline/test_replies.py reads each",
    "model/__init__.py": "a docstring",
    "model/errors.py": "a tree without code; tests/app/test_errors.py walks it",
    "model/output_types.py": "names; tests/model/test_output_dtype.py goes through them",
    "model/formats/__init__.py": "the record that every family's test builds on",
}
"""Modules without a test file of their name, each with its reason."""

MAX_LINES = 300
LONGER = {
    "app/batcher.py": "the queue is one state machine: admission, order and delivery share its invariants",
    "app/cli.py": "one list of commands, each a few lines over what does the work",
    "app/fetch.py": "sources, verification and placing belong to one all-or-nothing operation",
    "app/main.py": "the composition root: what the settings become, from loading to draining, in one place",
    "app/metrics.py": "one list of metrics, with their meaning",
    "app/options.py": "one list of options, with their documentation",
    "app/service.py": "the flow of a request, readable from top to bottom",
    "eyeline/async_client.py": "one method for each thing that a server does, with its documentation",
    "eyeline/client.py": "one method for each thing that a server does, with its documentation",
    "model/checkpoint.py": "a folder's tensors, and every reason to refuse them",
    "model/contract.py": "the records that cross the border, all in one place",
    "model/convert.py": "the names of two documents' tensors, and every refusal",
    "model/embedder.py": "the one object that owns a loaded model",
    "model/folder.py": "a folder's small files, and every reason to refuse them",
    "model/late_interaction.py": "the fields of three layouts, and every reason to refuse them",
    "model/tokenizer.py": "one text's way to ids, and everything that is counted on it",
}
"""Modules above :data:`MAX_LINES`, each with the reason why it is one module."""

MAX_DOCUMENTED_LINES = 600
"""Above this no reason is good enough."""


def file_with_tests(module: Path) -> Path:
    """Where the tests of a module are: ``app/routes/encode.py`` -> ``tests/app/routes/test_encode.py``."""
    return ROOT / "tests" / module.parent / f"test_{module.name}"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_has_its_test_file(module: Path) -> None:
    """A newcomer finds the tests of a module by its name; an exception has a reason, and only while it is one."""
    is_exception = str(module) in WITHOUT_TESTS_OF_THEIR_OWN
    assert file_with_tests(module).is_file() != is_exception


def test_every_exception_is_of_a_module() -> None:
    """A list of exceptions that has outlived its modules hides the next gap."""
    names = {str(module) for module in MODULES}
    assert names >= WITHOUT_TESTS_OF_THEIR_OWN.keys()
    assert names >= LONGER.keys()


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_module_grows_unnoticed(module: Path) -> None:
    """Above 300 lines a module needs a reason, and a reason needs a module that is about as long."""
    num_lines = len((ROOT / module).read_text().splitlines())
    if str(module) in LONGER:
        assert 0.9 * MAX_LINES < num_lines <= MAX_DOCUMENTED_LINES, f"{module} has {num_lines} lines"
    else:
        assert num_lines <= MAX_LINES, f"{module} has {num_lines} lines and no reason in LONGER"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_importing_does_no_work(module: Path) -> None:
    """On its top level a module defines: it calls no function for its effect, loops over nothing, opens nothing."""
    allowed = (
        ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
        ast.Assign, ast.AnnAssign, ast.If, ast.Try,
    )  # fmt: skip
    for node in ast.parse((ROOT / module).read_text()).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        assert is_docstring or isinstance(node, allowed), f"{module}:{node.lineno}"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_names_say_what_a_module_is(module: Path) -> None:
    """No drawer for odds and ends."""
    assert not {"utils", "util", "helpers", "common", "manager", "misc"} & set(re.split(r"[/_.]", str(module)))


def leaves(tree: type[Exception]) -> Iterator[type[Exception]]:
    """The classes of a tree that nothing derives from."""
    children = tree.__subclasses__()
    if not children:
        yield tree
    for child in children:
        yield from leaves(child)


@pytest.mark.parametrize("tree", [app.errors.ServiceError, model.errors.ModelError])
def test_every_error_has_an_answer(tree: type[Exception]) -> None:
    """Whatever is raised on purpose has a status and a code, or cannot happen in a request."""
    found = {leaf for leaf in leaves(tree) if leaf.__module__.startswith(PACKAGES)}
    assert len(found) > 1
    assert found <= ANSWERS.keys() | START_UP_ONLY


def exported_names() -> set[str]:
    """Every name that a scrape can show, and every family's own."""
    metrics = Metrics()
    metrics.for_model("m")
    names: set[str] = set()
    for family in metrics.registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum", ""]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


PICTURES = {".png"}

DOCUMENTS = [
    ROOT / "README.md",
    *sorted(
        path
        for folder in ("docs", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in PICTURES
    ),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_metrics_that_exist(document: Path) -> None:
    """A dashboard, an alert or a page that names a metric names one that is exported."""
    named = set(re.findall(r"\beyeline_[a-z_]+\b", document.read_text()))
    assert named <= exported_names()


def test_the_documents_name_every_metric() -> None:
    """Somewhere in the README or in docs each metric of ours is named."""
    pages = "".join(path.read_text() for path in DOCUMENTS if path.suffix == ".md")
    families = {family.name: family.type for family in Metrics().registry.collect()}
    ours = {name + "_total" * (kind == "counter") for name, kind in families.items() if name.startswith("eyeline_")}
    assert len(ours) > 15
    assert {name for name in ours if name not in pages} == set()


def test_contributors_find_every_module() -> None:
    """CONTRIBUTING says of each module at the top of a package what it does."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = dict(re.findall(r"^(\w+)/ .*\n((?:  .*\n)+)", text, re.MULTILINE))
    top = [module for module in MODULES if len(module.parts) == 2 and module.parts[0] in tree]
    assert len(top) > 50
    missing = [str(module) for module in top if not re.search(rf"\b{module.name}\b", tree[module.parts[0]])]
    assert missing == ["app/__init__.py", "model/__init__.py"]


def test_the_readme_has_every_setting() -> None:
    """The table of settings is the generated one, to the letter."""
    assert settings_table() in (ROOT / "README.md").read_text()
    assert len(Settings.model_fields) > 15


def test_the_documents_name_every_error() -> None:
    """Every code that an answer can have is explained."""
    pages = "".join(path.read_text() for path in DOCUMENTS if path.suffix == ".md")
    assert {code for code in app.errors.error_codes() if f"`{code}`" not in pages} == set()


def test_links_between_documents_lead_somewhere() -> None:
    """A relative link of a page is to a file that is there."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_shows_the_example_that_is_run() -> None:
    """What docs/attention.md shows is docs/plot_head.py to the letter: the file that tests/e2e runs."""
    page = (ROOT / "docs/attention.md").read_text()
    assert f"```python\n{(ROOT / 'docs/plot_head.py').read_text()}```\n" in page

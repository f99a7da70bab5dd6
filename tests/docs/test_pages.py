"""Every page: links resolve, the programs accept the examples, the architecture page is true."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import collector.settings
import edge_client.settings
from edge_client.policy import Policy
from edge_client.sources import KINDS, build_all
from protocol_spec import LONGITUDINAL, Manifest
from tests.support.documents import PAGES, blocks, name_of, read
from tests.support.harness import ROOT
from tutorial_notebook import NOTEBOOK, TUTORIAL, notebook

each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def without_code(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", read(page))


def anchors(page: Path) -> set[str]:
    """The names GitHub gives to a page's headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", without_code(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_relative_links_resolve_and_python_compiles(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            assert other.exists(), f"{name_of(page)} links to {target}"
            assert not anchor or anchor in anchors(other), f"{name_of(page)} links to {target}"
    for block in blocks(read(page), "python"):
        compile(block, name_of(page), "exec")


# --- manifests and configurations ----------------------------------------------------------------

EXAMPLES = {name: ROOT / f"deploy/{name}.toml.example" for name in ("collector", "edge")}


def fenced(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for i, block in enumerate(blocks(read(page), language)):
            yield f"{name_of(page)}[{i}]", block


def uncommented(program: str) -> str:
    """The example with every comment that is a setting taken up."""
    return re.sub(r"(?m)^# (\[|\w+ = )", r"\1", read(EXAMPLES[program]))


# Plain `toml` is a manifest, the agent's configuration, or a package's own file.
PLAIN = {where: (text, tomllib.loads(text)) for where, text in fenced("toml")}
MANIFESTS = {where: text for where, (text, found) in PLAIN.items() if "attributes" in found}
MANIFESTS |= {name_of(file): read(file) for file in sorted(ROOT.glob("docs/examples/*.toml"))}
CONFIGURATIONS = {
    "edge": [t for t, found in PLAIN.values() if not found.keys() & {"attributes", "project"}],
    "collector": [text for _, text in fenced("toml collector")],
}
CASES = [
    (program, text)
    for program, shown in CONFIGURATIONS.items()
    for text in (*shown, read(EXAMPLES[program]), uncommented(program))
]


def test_manifests_are_valid() -> None:
    assert len(MANIFESTS) >= 2
    for where, text in MANIFESTS.items():
        assert Manifest.from_toml(text).calibrations, where


def test_the_annotated_manifest_shows_every_field() -> None:
    guide = ROOT / "docs/operator-guide.md"
    text = max((b for where, b in MANIFESTS.items() if name_of(guide) in where), key=len)
    document, manifest = tomllib.loads(text), Manifest.from_toml(text)
    shown = {field.name for field in dataclasses.fields(Manifest)} | {"format"}
    assert shown == document.keys() | {"format"}
    rounds = {field.name for field in dataclasses.fields(manifest.rounds)}
    assert rounds == document["rounds"].keys()
    kinds = {key for attribute in document["attributes"] for key in attribute}
    assert kinds == {
        *("name", "question", "values", "otherwise", "edges", "low", "high", "unit"),
        *("changes", "protocol", "calibration"),
    }
    assert "`levels`" in read(guide)
    assert all(protocol in text for protocol in LONGITUDINAL)


@pytest.mark.parametrize(("program", "text"), CASES, ids=lambda value: value[:30])
def test_configurations_are_taken(program: str, text: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text, encoding="utf-8")
    if program == "collector":
        assert collector.settings.resolve({}, config=config, environ={}).required_broker().tls
    else:
        settings = edge_client.settings.resolve({}, config=config, environ={})
        build_all({n: t for n, t in settings.sources.items() if t.get("kind") != "plugin"})


def test_the_examples_show_every_everyday_setting() -> None:
    document = tomllib.loads(uncommented("collector"))
    assert document.keys() == {setting.name for setting in collector.settings.SETTINGS}
    document = tomllib.loads(uncommented("edge"))
    known = {setting.name for setting in edge_client.settings.SETTINGS}
    assert known - {"allow_plaintext", "keepalive", "log_level"} <= document.keys()
    assert Policy.from_table(document["policy"]) == Policy()
    shown = {table.get("kind", "static") for table in document["sources"].values()}
    assert shown == KINDS.keys() - {"plugin"}


def test_the_notebook_is_what_the_tutorial_says() -> None:
    """If this fails: python scripts/tutorial_notebook.py"""
    assert read(NOTEBOOK) == notebook(read(TUTORIAL))
    made = json.loads(read(NOTEBOOK))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


# --- the architecture page: what it names exists, every cited id is defined once, with a test -----


PAGE = ROOT / "docs/architecture.md"
CONTRACT = ROOT / "protocol_spec/README.md"
TOPS = ("protocol_spec", "edge_client", "collector", "scripts", "tests", "docs", "deploy")
TEXTS = (".py", ".md", ".toml", ".html", ".js", ".yaml", ".json", ".service", ".conf", ".sh")
# Invariants, requirements, and the contract's own numbered MUSTs.
CITED = re.compile(r"(?<![\w#&\\{/-])([IRM]\d{1,2})(?![\w(/-])")


def rows() -> list[list[str]]:
    """Rows of the page's tables that begin with an id: `| I6 | meaning | test |`."""
    found = re.findall(r"(?m)^\|\s*\**([A-Z]\d{1,2})\**\s*\|(.*)\|$", PAGE.read_text("utf-8"))
    return [[number, *(cell.strip() for cell in rest.split("|"))] for number, rest in found]


def cited() -> dict[str, set[str]]:
    """Where each id is cited, anywhere in the project but on the page itself."""
    below = [path for top in TOPS for path in sorted((ROOT / top).rglob("*"))]
    found = defaultdict(set)
    for path in (*ROOT.glob("*.md"), *below):
        if path.suffix in TEXTS and path not in (PAGE, Path(__file__)):
            for number in CITED.findall(path.read_text(encoding="utf-8")):
                found[number].add(str(path.relative_to(ROOT)))
    return found


def test_every_cited_id_is_defined_once() -> None:
    numbers = [row[0] for row in rows()]
    assert sorted(numbers) == sorted(set(numbers))
    contract = re.findall(r"(?m)^- \*\*(M\d+)\*\* ", CONTRACT.read_text(encoding="utf-8"))
    found = cited()
    assert len(found) > 50, "the search must find what is known to be there"
    assert {n: where for n, where in found.items() if n not in {*numbers, *contract}} == {}


def test_every_id_has_a_meaning_and_a_test_that_exists() -> None:
    assert [row[0] for row in rows() if len(row) < 3 or not row[1] or not row[2]] == []
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", str(rows()))
    assert named
    missing = [
        (file, test)
        for file, test in named
        if not (ROOT / file).exists() or f"def {test}" not in (ROOT / file).read_text("utf-8")
    ]
    assert missing == []


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page: Path) -> None:
    """Except for the example's, which the reader makes."""
    named = re.findall(rf"`((?:{'|'.join(TOPS)})/[\w/.-]+)`", page.read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = {name for name in named if not (ROOT / name).exists()}
    assert missing - {"edge_client/sources/text_file.py"} == set()

"""Who may import what: the collector stands on the contract alone, and each tool has one place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.protocol.imports import imported, offenders, sources

SQL = re.compile(
    r"\b(SELECT .+ FROM|INSERT (OR \w+ )?INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE|PRAGMA)\b",
    re.DOTALL,
)


def users_of(*modules: str) -> set[str]:
    """Files of the collector that import one of these or anything inside it."""
    return {found.split(" imports ")[0] for found in offenders("collector", *modules)}


def test_the_collector_never_imports_the_agent() -> None:
    assert offenders("collector", "edge_client") == []
    assert offenders("edge_client", "collector") == []
    assert offenders("protocol_spec", "collector", "edge_client") == []


def test_paho_is_in_the_link_alone() -> None:
    assert users_of("paho") == {"collector/links/mqtt.py"}


def test_databases_are_in_the_store_alone() -> None:
    users = users_of("sqlite3", "sqlite_utils")
    assert {str(Path(user).parent) for user in users} == {"collector/store/sqlite"}
    assert {str(Path(user).parent) for user in users_of("psycopg")} == {"collector/store/postgres"}


def test_sql_is_in_the_store_alone() -> None:
    found = set()
    for path in sources("collector"):
        texts = [text for n in ast.walk(ast.parse(path.read_text())) if (text := text_of(n))]
        if any(SQL.search(text) for text in texts):
            found.add(str(path.relative_to(ROOT).parent))
    assert found == {"collector/store/sqlite", "collector/store/postgres"}


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def test_messages_are_packed_by_the_contract_alone() -> None:
    assert users_of("msgpack") == set()


def test_the_web_is_in_its_own_package_and_its_client_in_metrics() -> None:
    assert users_of("starlette", "uvicorn") <= {
        str(path.relative_to(ROOT)) for path in sources("collector/web")
    }
    assert users_of("prometheus_client") == {"collector/metrics.py"}


def test_chance_plays_no_part_in_counting() -> None:
    """The collector draws no noise: a result depends on reports alone."""
    assert users_of("random", "numpy.random") == set()


def test_the_engine_is_chosen_in_one_place() -> None:
    """Whoever reads or writes asks the port; an engine's own modules know each other."""
    engines = ("sqlite", "postgres", "memory")
    users = users_of(*(f"collector.store.{engine}" for engine in engines))
    outside = {user for user in users if not user.startswith("collector/store/")}
    assert outside == {"collector/data_dir.py"}


@pytest.mark.parametrize("module", ["collector.web.app", "collector.ingest", "collector.health"])
def test_what_only_reads_or_counts_loads_no_paho(module: str) -> None:
    """The page's process, above all, has no business with a broker."""
    assert not loaded(module) & {"paho", "paho.mqtt.client", "collector.links.mqtt"}
    assert "collector.service" not in loaded(module)


@cache
def loaded(module: str) -> set[str]:
    """What a fresh process has in memory after importing a module."""
    code = f"import {module}, sys; print(*sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(shown.stdout.split())


def test_the_command_line_starts_without_the_web() -> None:
    """Every command but `run --listen` does without it."""
    unwanted = {"uvicorn", "starlette", "prometheus_client", "plotly", "edge_client", "psycopg"}
    assert not loaded("collector.commands") & unwanted


def test_every_module_says_what_it_is() -> None:
    for path in sources("collector"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
        assert "__future__" in imported(path) or not imported(path), path

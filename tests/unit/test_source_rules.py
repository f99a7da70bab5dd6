"""Rules about the source that neither ruff nor import-linter (see pyproject.toml) can express."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.__main__ import main as collector
from edge_client.__main__ import main as edge
from protocol_spec.mechanisms import MECHANISMS
from protocol_spec.programs.cli import Program
from tests.support.harness import ROOT

PRODUCT = ("protocol_spec", "edge_client", "collector")


def files(*directories: str) -> list[Path]:
    return [path for name in directories for path in sorted((ROOT / name).rglob("*.py"))]


def lines_with(pattern: str, *directories: str) -> list[str]:
    """Lines of the source that match, each with its place."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files(*directories)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]


def test_the_product_and_the_scripts_import_no_tests() -> None:
    assert lines_with(r"^\s*(from|import) tests\b", *PRODUCT, "scripts") == []


def test_tests_share_code_only_through_support() -> None:
    """tests/unit/test_x.py imports neither another test nor a conftest."""
    assert lines_with(r"^\s*(from|import) tests\.(?!support\b)", "tests") == []


def test_the_agents_only_randomness_is_the_systems() -> None:
    """R01, as far as names show it; imports of `random` are forbidden in pyproject.toml."""
    other = r"(?<!u)random\.\w|getrandbits|randint|uuid|token_|SystemRandom"
    assert lines_with(other, "edge_client") == []


def test_tls_contexts_are_created_in_one_module() -> None:
    """R18. The second one never connects: it checks that a certificate and a key match."""
    found = lines_with(r"create_default_context|SSLContext\(|_create_unverified", *PRODUCT)
    modules = {line.partition(":")[0] for line in found}
    assert modules == {"protocol_spec/programs/settings.py", "collector/brokers/credentials.py"}


def test_both_programs_write_through_streams_that_escape() -> None:
    """A10. `json.dumps` leaves some control characters, so commands use `output.as_json`."""
    assert isinstance(edge, Program)
    assert isinstance(collector, Program)
    streams = r"sys\.(__)?std(out|err)|logging\.(basicC|StreamH|lastR)|[\"']/dev/(tty|std(out|err))"
    gate = "protocol_spec/programs/output.py"
    found = [line for line in lines_with(streams, *PRODUCT) if not line.startswith(gate)]
    assert [line for line in found if "ink_of(sys.stdout, " not in line] == []  # only asks
    assert (
        lines_with(r"^\s*(import json|from json)\b", "edge_client/cli", "collector/commands") == []
    )


def test_the_programs_name_no_mechanism() -> None:
    """A new one is one file in protocol_spec/mechanisms and its registration: what is different
    about a mechanism is asked of its class, never decided by its name."""
    named = rf"""(["'])({"|".join(MECHANISMS)})\1"""
    pages = [p for name in PRODUCT[1:] for p in sorted((ROOT / name).rglob("*.html"))]
    assert pages
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (*files("edge_client", "collector", "scripts/simulation"), *pages)
        for match in re.finditer(named, path.read_text(encoding="utf-8"))
    ]
    assert found == []


# --- tests patch nothing of the product ----------------------------------------------------------


def patches(tree: ast.Module) -> Iterator[int]:
    """Lines that replace something in a module of the product, however it was imported."""
    names = set(_module_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _is_patch(node.func):
            target = node.args[0]
            text = target.value if isinstance(target, ast.Constant) else ast.unparse(target)
            if str(text).startswith(tuple(f"{package}." for package in PRODUCT)) or text in names:
                yield node.lineno
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            changed = (t.value for t in targets if isinstance(t, ast.Attribute))
            if any(ast.unparse(owner) in names for owner in changed):
                yield node.lineno


def _is_patch(function: ast.expr) -> bool:
    return ast.unparse(function).endswith(("setattr", "delattr", "patch", "patch.object"))


def _module_names(tree: ast.Module) -> Iterator[str]:
    """Names that stand for modules of the product."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = (alias for alias in node.names if alias.name.startswith(PRODUCT))
            yield from (alias.asname or alias.name for alias in ours)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRODUCT):
            place = ROOT / (node.module or "").replace(".", "/")
            for alias in node.names:
                if (place / alias.name).is_dir() or (place / f"{alias.name}.py").exists():
                    yield alias.asname or alias.name


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from collector import errors\nmonkeypatch.setattr(errors, 'STEP', 0)", True),
        ("import collector.errors\nmonkeypatch.setattr(collector.errors, 'STEP', 0)", True),
        ("monkeypatch.setattr('collector.errors.STEP', 0)", True),
        ("from edge_client import errors\nwith mock.patch.object(errors, 'STEP', 0): pass", True),
        ("from unittest.mock import patch\npatch('edge_client.cli.STEP')", True),
        ("def f():\n from collector import errors as e\n e.STEP = 0", True),
        ("monkeypatch.setattr('sys.path', [])\nclient.service = 1", False),
    ],
)
def test_a_patch_is_seen(code: str, found: bool) -> None:
    assert bool(list(patches(ast.parse(code)))) is found


def test_tests_patch_nothing_of_the_product_and_use_no_private_attribute() -> None:
    private = _private_names(*PRODUCT) - _private_names("tests", "scripts")
    offences = []
    for path in files("tests"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        offences += [f"{path}:{line} patches the product" for line in patches(tree)]
        offences += [
            f"{path}:{node.lineno} uses {node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr in private
            and ast.unparse(node.value) not in ("self", "cls")
        ]
    assert offences == []


def _private_names(*directories: str) -> set[str]:
    """Functions, and attributes of `self` and `cls`, whose names begin with one underscore."""
    defined = re.compile(r"\bdef (_[a-z]\w*)|\b(?:self|cls)\.(_[a-z]\w*)")
    texts = [path.read_text(encoding="utf-8") for path in files(*directories)]
    return {found[1] or found[2] for text in texts for found in defined.finditer(text)}


# --- what is missing ------------------------------------------------------------------------------

NEEDY = """
import pytest
from tests.support.harness import need

def test_in_its_body(): need("no-such-program")

@pytest.mark.needs("no-such-program")
def test_by_its_mark(): raise AssertionError("must not run")

def test_for_another_reason(): pytest.skip("only root can do that")

def test_that_runs(): need("sh")
"""


@pytest.mark.parametrize(
    ("ci", "code", "counted"), [("", 0, "1 passed, 3 skipped"), ("true", 1, "1 skipped")]
)
def test_a_missing_program_skips_a_test_or_with_ci_fails_it(
    ci: str, code: int, counted: str, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_needs.py").write_text(NEEDY)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)],
        env=os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert counted in done.stdout
    assert "no-such-program is not installed" in done.stdout

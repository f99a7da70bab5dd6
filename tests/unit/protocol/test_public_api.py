"""The contract's main door, and what stays behind it; import rules are in pyproject.toml."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import protocol_spec
from tests.support.harness import ROOT, every
from tests.support.protocol.imports import imported, offenders, sources

PUBLIC: list[str] = getattr(protocol_spec, "__all__")  # noqa: B009 - made when it is loaded


def case(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions, each in alphabetical order."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


def test_all_is_sorted_and_has_no_name_twice() -> None:
    assert sorted(set(PUBLIC)) == PUBLIC


@every("name", PUBLIC)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    public = getattr(protocol_spec, name)
    if inspect.isclass(public) or inspect.isfunction(public):
        assert public.__doc__
        assert public.__module__.startswith("protocol_spec.")


@every("path", sources("protocol_spec"))
def test_every_module_can_be_imported_and_says_what_it_is(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert importlib.import_module(name.removesuffix(".__init__")).__doc__


def test_the_door_opens_when_it_is_asked() -> None:
    """A program that only says its version does not wait for the mathematics."""
    code = "import sys, protocol_spec.errors; print('protocol_spec.manifest' in sys.modules)"
    code += "; from protocol_spec import *; print(Manifest.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "protocol_spec.manifest"]
    assert set(PUBLIC) <= set(dir(protocol_spec))


def test_a_name_that_is_not_public_is_told_as_python_tells_it() -> None:
    with pytest.raises(AttributeError, match="module 'protocol_spec' has no attribute 'Nothing'"):
        getattr(protocol_spec, "Nothing")  # noqa: B009 - a name that mypy would refuse


def test_the_agent_does_not_know_estimation() -> None:
    assert offenders("edge_client", "numpy", "protocol_spec.estimation") == []


def test_one_module_speaks_msgpack() -> None:
    users = {line.split()[0] for line in offenders("protocol_spec", "msgpack")}
    assert users == {"protocol_spec/encoding.py"}
    assert offenders("edge_client", "msgpack") == []
    assert offenders("collector", "msgpack") == []


def test_offenders_are_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A control: the walk sees imports of every kind, wherever they stand."""
    path = tmp_path_factory.mktemp("walk") / "x.py"
    path.write_text("import a.b\nfrom c import d\ndef f():\n    from e.g import h\n")
    assert {"a.b", "c", "c.d", "e.g", "e.g.h"} == imported(path)

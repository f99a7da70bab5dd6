"""The reference itself stands on nothing but arithmetic: it agrees with msgpack and plain sums."""

from __future__ import annotations

import ast
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.harness import ROOT
from tests.support.protocol.reference import LONGITUDINAL, calibrate, mp
from tests.support.protocol.reference_wire import packed

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary(max_size=70)
    | st.text(max_size=70)
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=30,
)


@given(PLAIN)
def test_the_writer_agrees_with_msgpack(value: Any) -> None:
    assert packed(value) == msgpack.packb(value)


@pytest.mark.parametrize("length", [31, 32, 255, 256, 65_535, 65_536])
def test_the_writer_agrees_at_every_change_of_header(length: int) -> None:
    for value in ("x" * length, b"x" * length, [1] * length, {str(i): i for i in range(length)}):
        assert packed(value) == msgpack.packb(value)


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_the_root_found_spends_exactly_both_budgets(protocol: str) -> None:
    mechanism = calibrate(protocol, 5, 2.0, 0.6)
    assert abs(mechanism.epsilon(1) - mp.mpf(0.6)) < mp.mpf(10) ** -70
    assert abs(mechanism.epsilon(2000) - 2) < mp.mpf(10) ** -20


INDEPENDENT = ["reference", "reference_wire", "reference_ways", "vectors", "way_vectors"]
INDEPENDENT += ["manifest_cases", "message_cases"]


@pytest.mark.parametrize("module", INDEPENDENT)
def test_it_does_not_use_what_it_checks(module: str) -> None:
    tree = ast.parse((ROOT / "tests/support/protocol" / f"{module}.py").read_text(encoding="utf-8"))
    names = [
        name
        for node in ast.walk(tree)
        for name in _imported(node)
        if name.split(".")[0] in ("protocol_spec", "edge_client", "collector")
    ]
    assert names == []


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []

"""R01: no pseudo-random generator is within reach of a draw."""

from __future__ import annotations

import subprocess
import sys

from tests.support.harness import ROOT
from tests.support.protocol.imports import offenders

DRAW = """
import sys
from protocol_spec import Manifest, Randomiser, calibrate
for protocol in ("L-GRR", "L-OSUE"):
    randomiser = Randomiser(calibrate(protocol, k=9, eps_inf=2.0, eps_1=0.6))
    randomiser.report(randomiser.memoize(3))
from protocol_spec.mechanisms import (
    Hashed, HashedRandomiser, Nested, NestedRandomiser, Once, OnceRandomiser, code
)
once = OnceRandomiser(Once.calibrate(k=9, epsilon=2.0, rounds=9))
once.rounds(), once.report(once.memoize(3))
hashed = HashedRandomiser(Hashed.calibrate(k=9, eps_inf=2.0, eps_1=0.6), code(bytes(32), "a", 9))
hashed.report(hashed.memoize(hashed.key(3)))
NestedRandomiser(Nested.calibrate("OUE", k=9, schedule=[0.6, 2.0])).draw(3)
print(*sorted({"random", "numpy"} & set(sys.modules)))
"""


def test_drawing_loads_neither_random_nor_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRAW], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_the_contract_imports_no_generator() -> None:
    assert offenders("protocol_spec", "random", "numpy.random") == []


def test_numpy_is_behind_the_one_door_devices_never_open() -> None:
    files = {line.split()[0] for line in offenders("protocol_spec", "numpy")}
    assert files
    assert {file for file in files if not file.startswith("protocol_spec/estimation/")} == set()


def test_the_agent_imports_neither_a_generator_nor_numpy() -> None:
    assert offenders("edge_client", "random", "numpy", "protocol_spec.estimation") == []

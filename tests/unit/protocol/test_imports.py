"""The contract's main door, and what stays behind it; import rules are in pyproject.toml."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import time
from pathlib import Path

import protocol_spec
from tests.support.harness import ROOT, every
from tests.support.protocol.imports import offenders, sources

PUBLIC: list[str] = getattr(protocol_spec, "__all__")  # noqa: B009 - made when it is loaded


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


def test_one_module_speaks_msgpack() -> None:
    users = {line.split()[0] for line in offenders("protocol_spec", "msgpack")}
    assert users == {"protocol_spec/encoding.py"}
    assert offenders("edge_client", "msgpack") == []
    assert offenders("collector", "msgpack") == []


# --- Without what msgpack compiled, as on 32-bit boards: the same bytes are made and refused.


# A device that joins and draws, with the same entropy each time; prints what it would send.
AGENT = """
import hashlib, sys
from itertools import count
import msgpack
from edge_client import EdgeClient, Policy
from protocol_spec import Manifest
from tests.support.campaigns import manifest_text

print(msgpack.Packer.__module__)
numbers = count()

def entropy(size):
    return hashlib.shake_256(str(next(numbers)).encode()).digest(size)

asked = Manifest.from_toml(manifest_text(first=int(sys.argv[2])))
with EdgeClient(sys.argv[1], policy=Policy(min_period=1), entropy=entropy) as client:
    invitation = client.invitation(manifest=asked, broker="mqtt://localhost")
    client.join(invitation, device="device")
    client.agent.draw(client.find(), lambda _: "gas")
    print(asked.to_bytes().hex(), asked.digest.hex())
    print(*[row.payload.hex() for row in client.store.reports(asked.campaign)])
"""


def run(*words: str, pure: bool) -> list[str]:
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    variables.pop("MSGPACK_PUREPYTHON", None)
    done = subprocess.run(
        [sys.executable, *words],
        env={**variables, "MSGPACK_PUREPYTHON": "1"} if pure else variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_an_agent_makes_the_same_bytes(tmp_path: Path) -> None:
    first = str(int(time.time()) - 5)
    made = {
        pure: run("-c", AGENT, str(tmp_path / str(pure)), first, pure=pure)
        for pure in (True, False)
    }
    assert (made[True][0], made[False][0]) == ("msgpack.fallback", "msgpack._cmsgpack")
    assert made[True][1:] == made[False][1:]
    assert len(bytes.fromhex(made[True][2])) == 17, "a report was drawn"


def test_every_vector_of_messages_and_manifests_holds() -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    shown = run(*words, "tests/unit/protocol/test_messages.py", pure=True)
    assert " passed" in shown[-1]


# --- R01: no pseudo-random generator is within reach of a draw.


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

"""Without what msgpack compiled, as on 32-bit boards: the same bytes are made and refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.harness import ROOT

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
    shown = run(*words, "tests/unit/protocol/test_wire_vectors.py", pure=True)
    assert " passed" in shown[-1]

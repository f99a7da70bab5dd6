"""A10: on a real terminal, hostile text of files and brokers arrives escaped and short."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from protocol_spec import Topics
from testbed.brokers import Tally
from tests.support.brokers import new_broker
from tests.support.campaigns import manifest, manifest_text
from tests.support.edge_processes.processes import environment
from tests.support.hostile import ESCAPES, hidden_in, toml

HOSTILE = "".join(ESCAPES)


def on_a_terminal(*words: str | Path) -> tuple[int, str]:
    """Run one command as a person does; its code, and all that reached the terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        received = b""
        try:
            while data := os.read(ours, 65_536):
                received += data
        except OSError:
            pass  # Linux says so when the last writer is gone
        finally:
            os.close(ours)
    return process.returncode, received.decode().replace("\r\n", "\n")


def test_a_manifest_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "heat.toml"
    many = "".join(f"{toml(f'{HOSTILE}{i}')} = 1\n" for i in range(3000))
    file.write_text(f"{many}{manifest_text()}", encoding="utf-8")
    join = ("edge_client", "join", "--manifest", file, "--broker", "mqtt://localhost")
    state = ("--state-dir", tmp_path / "state")
    for words in ((*join, *state), ("collector", "plan", file, "--devices", "9")):
        code, told = on_a_terminal(*words)
        assert code == 2, told
        assert "is not a field of a manifest" in told
        assert hidden_in(told) == set()
        assert len(told) < 4000


@pytest.mark.parametrize("kind", ["nats", "mosquitto"])
def test_a_manifest_of_a_broker(tmp_path: Path, kind: str) -> None:
    asked = manifest()
    document = msgpack.unpackb(asked.to_bytes())
    hostile = msgpack.packb(document | {f"{HOSTILE}{i}": HOSTILE for i in range(5)})
    with new_broker(kind, tmp_path / "broker") as broker, Tally(broker.port, asked) as tally:
        tally.publish(Topics(asked.campaign).manifest, hostile, retain=True)
        address = f"mqtt://127.0.0.1:{broker.port}/allomfree/{asked.campaign}"
        code, told = on_a_terminal(
            "edge_client", "join", address, "--preview", "--state-dir", tmp_path / "state"
        )
    assert code != 0, told
    assert "is not a field of a manifest" in told
    assert hidden_in(told) == set()
    assert len(told) < 4000

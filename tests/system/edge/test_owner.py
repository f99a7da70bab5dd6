"""`status`, `show` and `pause` work at any moment beside the running agent, undisturbed by it."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest

from edge_client import EdgeClient
from protocol_spec import Manifest, Topics
from testbed.brokers import Nats, Tally
from testbed.collector import CollectorProcess
from testbed.processes import free_port
from tests.support.brokers import new_broker
from tests.support.campaigns import manifest, manifest_text
from tests.support.command_line import operator, undisturbed
from tests.support.documents import blocks, section
from tests.support.edge_processes import AgentProcess, edge, environment, fresh_manifest, joined
from tests.support.harness import ROOT
from tests.support.hostile import ESCAPES, hidden_in, toml

ROUNDS = 3


@pytest.mark.slow
def test_looking_all_the_time(nats: Nats, tmp_path: Path) -> None:
    """Also in the instant in which the agent is writing: nobody is ever told "locked"."""
    asked, state = fresh_manifest(period=1, grace=3600), tmp_path / "state"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked), AgentProcess(config) as agent:
        looks = 0
        while agent.said("was counted") < ROUNDS:
            with EdgeClient(state, exclusive=False) as client:
                client.store.reports(asked.campaign)
                looks += 1
            assert agent.is_running, agent.lines
        assert looks > ROUNDS
        warned = [line["message"] for line in agent.lines if line["level"] != "info"]
        # A test machine may have no time server, which an agent says.
        assert [message for message in warned if not message.startswith("clock: ")] == []


@pytest.mark.slow
def test_pausing_a_running_agent(nats: Nats, tmp_path: Path) -> None:
    asked, state = fresh_manifest(period=1, grace=3600), tmp_path / "state"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked), AgentProcess(config) as agent:
        agent.wait_for("was counted")
        assert edge("pause", "--config", config).returncode == 0
        assert "paused" in edge("status", "--config", config).stdout
        with EdgeClient(state, exclusive=False) as client:
            last = client.find().last_round
        assert edge("resume", "--config", config).returncode == 0
        agent.wait_for("was counted", times=agent.said("was counted") + 1)
        with EdgeClient(state, exclusive=False) as client:
            assert client.find().last_round > last
            assert len(client.store.ledger()) == 1


# --- The owner's path exactly as docs/raspberry-pi.md has it, in an empty home.


BROKER = "mqtts://broker.example"
NAME = re.compile(r"home-heat-[0-9a-f]{8}([0-9a-f]{56})?")
CUT = "[...]"
INSTALL, PATH = blocks(section(ROOT / "docs/raspberry-pi.md", "## In five minutes"), "console")
ASKED = """
format = 1
slug = "home-heat"
title = "How homes are heated"
purpose = "To plan the grid"
owner = "Example Energy Institute"
contact = "privacy@example.org"
eps_inf = 2.0
eps_1 = 0.5
min_reports = 1
[rounds]
first = {first}
period = 86400
count = 365
grace = 3600
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "heat pump", "other"]
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A copy of the repository, as it were, with what the operator gave."""

    home: Path
    url: str
    manifest: Manifest

    def as_here(self, text: str) -> str:
        """The page's text with this broker's address and this campaign's name."""
        text = text.replace(f"{BROKER}:8883", BROKER).replace(BROKER, self.url)
        full, short = self.manifest.full_name, self.manifest.campaign
        return NAME.sub(lambda found: full if found[1] else short, text)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A collector with a broker that asks for passwords; the device `kitchen` is enrolled."""
    data, home, port = tmp_path / "data", tmp_path / "home", free_port()
    home.mkdir()
    asked = tmp_path / "heat.toml"
    asked.write_text(ASKED.format(first=int(time.time()) - 60), encoding="utf-8")
    with undisturbed(), operator("--data-dir", data) as types:
        bound = ("--bind", "127.0.0.1", "--port", port)
        types.runs("broker-config", "nats", "--host", "localhost", *bound)
        types.runs("open", asked, "--unsigned")
        types.runs("enrol", "kitchen")
    shutil.copytree(data / "broker" / "credentials" / "kitchen", home / "kitchen")
    with CollectorProcess(data) as collector:
        collector.wait_until_connected()
        yield Place(home, f"mqtts://localhost:{port}", Manifest.from_file(asked))


def steps(transcript: str) -> list[tuple[str, list[str]]]:
    """Each command, and the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in transcript.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def is_shown(wanted: list[str], said: list[str]) -> bool:
    """Whether all that is wanted was said in this order; `[...]` lets lines pass."""
    at, anywhere = 0, False
    for line in wanted:
        if line == CUT:
            anywhere = True
            continue
        fits = [i for i in range(at, len(said)) if _fits(line, said[i])]
        if not fits or (fits[0] != at and not anywhere):
            return False
        at, anywhere = fits[0] + 1, False
    return True


def _fits(wanted: str, said: str) -> bool:
    head, cut, _ = wanted.partition(CUT)
    said = said.replace("\u00a0", " ").rstrip()
    return said.startswith(head) if cut else said == wanted.rstrip()


def test_what_is_shown_is_compared() -> None:
    assert is_shown(["a", CUT, "c", "d: [...]"], ["a", "b", "c", "d: e"])
    assert not is_shown(["a", "c"], ["a", "b", "c"])
    assert not is_shown(["a", CUT, "b"], ["a", "c"])


def test_the_installation_is_what_makes_the_program() -> None:
    """Its own lines take a network; what they install is checked with the wheel."""
    assert [command for command, _ in steps(INSTALL)] == [
        "python3 -m venv ~/allomfree",
        "~/allomfree/bin/pip install --quiet .",
        'export PATH="$HOME/allomfree/bin:$PATH"',
    ]


@pytest.mark.slow
def test_the_path_as_it_is_written(place: Place) -> None:
    script = "".join(
        f"echo '=== {number}'; {place.as_here(command)}\n"
        for number, (command, _) in enumerate(steps(PATH))
    )
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"HOME": str(place.home), "PATH": programs, "LANG": "C.UTF-8"},
        cwd=place.home,
        input="y\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    parts = re.split(r"(?m)^=== \d+\n", done.stdout)[1:]
    for (command, wanted), said in zip(steps(PATH), parts, strict=True):
        lines = [line for line in said.splitlines() if not line.startswith(("{", "Clock: "))]
        typed = "\n".join(wanted).replace("[y/N]: y\n\n", "[y/N]:\n")  # Enter is not echoed
        here = place.as_here(typed).split("\n") if wanted else []
        assert is_shown(here, lines), f"{command}\n{said}"
    assert done.returncode == 0
    kept = place.home / ".local/state/allomfree-edge/credentials.json"
    assert kept.stat().st_mode & 0o077 == 0
    page = (place.home / "statement.html").read_text(encoding="utf-8")
    assert "What heats your home?" in page


# --- A10: on a real terminal, hostile text of files and brokers arrives escaped and short.


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

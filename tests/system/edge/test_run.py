"""`allomfree-edge run` as its owner and systemd see it, in every round and on a terminal."""

from __future__ import annotations

import math
import os
import pty
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest

from edge_client import EdgeClient
from edge_client.agent import Due, Wait, due
from edge_client.clock import SystemClock
from edge_client.daemon import CampaignSchedule
from edge_client.records import Timing
from protocol_spec import Manifest, Presence, State, Topics, digest8
from protocol_spec.programs.memory_broker import MemoryBroker
from testbed.agents import RoundClock
from testbed.brokers import Broker, Nats, Tally
from testbed.collector import CollectorProcess
from testbed.processes import free_port, peak_memory_mib
from tests.support.agents import AgentProcess, draw_now, edge, fresh_manifest, joined
from tests.support.campaigns import manifest, manifest_text
from tests.support.command_line import operator, undisturbed
from tests.support.documents import blocks, section
from tests.support.edge import (
    DAY,
    FIRST,
    QUICK,
    ROOMY,
    FakeClock,
    MemoryTally,
    daily,
    joined_agent,
    runner_of,
    tick_until,
)
from tests.support.harness import ROOT
from tests.support.hostile import ESCAPES, hidden_in, toml
from tests.support.processes import environment, wait_until


@pytest.mark.parametrize(
    ("kind", "number"), [("path", signal.SIGTERM), ("abstract", signal.SIGINT)]
)
def test_notifications_and_the_end(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    """READY, WATCHDOG and STOPPING reach systemd; a signal ends it, and what is queued stays."""
    asked, state = manifest(), tmp_path / "state"
    config = joined(state, asked, f"mqtt://127.0.0.1:{free_port()}")
    payload = draw_now(state)
    address = f"@allomfree-{os.getpid()}-{number}" if kind == "abstract" else f"{tmp_path}/n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address.replace("@", "\0", 1) if kind == "abstract" else address)
        channel.settimeout(30)

        def wait_for(word: str) -> str:
            while word not in (message := channel.recv(4096).decode()).splitlines():
                pass
            return message

        with AgentProcess(config, extra_environment={"NOTIFY_SOCKET": address}) as agent:
            wait_for("READY=1")
            assert "STATUS=BROKER_AWAY" in wait_for("WATCHDOG=1")
            os.kill(agent.pid, number)
            wait_for("STOPPING=1")
            assert agent.process.wait(30) == 0
    assert not any("Traceback" in line["message"] for line in agent.lines)
    with EdgeClient(state) as client:
        rows = [(r.payload, r.fate) for r in client.store.reports(asked.campaign)]
    assert rows == [(payload, "queued")]


def last_drawn(state: Path) -> int:
    with EdgeClient(state, exclusive=False) as client:
        return client.find().last_round


@pytest.mark.slow
def test_a_running_agent_can_be_looked_at_and_paused(nats: Nats, tmp_path: Path) -> None:
    """In 30 MiB, with a report in every round; also in the instant in which the agent writes
    nobody gets "locked"."""
    asked, state = fresh_manifest(period=2, grace=3600), tmp_path / "state"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        while agent.said("was counted") < 3:
            with EdgeClient(state, exclusive=False) as client:
                client.store.reports(asked.campaign)
            assert agent.is_running, agent.lines
        assert 10 < peak_memory_mib(agent.pid) <= 30
        rounds = sorted(number for _, number in list(tally.payloads))
        assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))
        assert edge("pause", "--config", config).returncode == 0
        assert "paused" in edge("status", "--config", config).stdout
        last = last_drawn(state)
        assert edge("resume", "--config", config).returncode == 0
        wait_until(lambda: last_drawn(state) > last)
        warned = [line["message"] for line in agent.lines if line["level"] != "info"]
        # A test machine may have no time server, which an agent logs.
        assert [message for message in warned if not message.startswith("clock: ")] == []
    with EdgeClient(state) as client:
        assert len(client.store.ledger()) == 1
        rows = client.store.reports(asked.campaign)
    assert all(asked.rounds.round_at(row.drawn) == row.round for row in rows)


# --- R26: a report every round, changed or not, at a random moment of the round -------------------


SEED = 20_261_116


def distance_from_uniform(sample: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's, times the root of n: above 1.95 once in a thousand times."""
    ordered, n = sorted(sample), len(sample)
    gaps = (max((i + 1) / n - x, x - i / n) for i, x in enumerate(ordered))
    return max(gaps) * math.sqrt(n)


def test_the_moment_is_uniform_in_the_round(tmp_path: Path) -> None:
    asked, moments = manifest(count=3_000), []
    clock = RoundClock(asked.rounds)
    schedule = CampaignSchedule(clock, Timing(), random.Random(SEED).randbytes)
    with EdgeClient(tmp_path / "state", clock=clock) as client:
        membership = client.join(client.invitation(manifest=asked, broker="mqtt://localhost"))
    for clock.round in range(3_000):
        allowed = due(membership, clock)
        assert isinstance(allowed, Due)
        moment = schedule.moment(membership, allowed)
        assert moment == schedule.moment(membership, allowed), "chosen once a round"
        moments.append((moment - clock.wall()) / asked.rounds.period)
    assert min(moments) >= 0
    assert max(moments) < 1
    assert distance_from_uniform(moments) < 1.95, f"seed {SEED}"
    assert distance_from_uniform([0.97 * moment for moment in moments]) > 1.5
    assert distance_from_uniform([moment**1.2 for moment in moments]) > 1.95


def test_no_round_is_left_out(tmp_path: Path) -> None:
    """A hundred days, the loop turning every few minutes, the value changing beyond the cap."""
    asked, clock, broker = daily(max_values=2), FakeClock(), MemoryBroker()
    tally, dice = MemoryTally(broker, asked), random.Random(SEED)
    agent = joined_agent(tmp_path / "state", clock, asked, device="device")
    runner = runner_of(
        agent,
        lambda _: dice.choice(("wood", "wood", "gas", "wood", "oil")),
        make_link=broker.link,
        timing=Timing(resend_seconds=600.0, reconnect_seconds=600.0),
        entropy=random.Random(SEED).randbytes,
    )
    moments = []
    while clock.now < FIRST + 100 * DAY:
        known = len(tally.payloads)
        runner.tick(wait=0.0)
        moments += [clock.now] * (len(tally.payloads) - known)
        clock.pass_time(300.0)
    runner.tick(wait=0.0)
    assert sorted(tally.payloads) == [("device", number) for number in range(100)]
    assert all(len(payloads) == 1 for payloads in tally.payloads.values())
    assert len({len(payload) for _, payload in tally.deliveries}) == 1
    assert [asked.rounds.round_at(moment) for moment in moments] == list(range(100))
    assert {row.fate for row in agent.store.reports(asked.campaign)} == {"counted"}
    assert len(agent.store.memos(asked.campaign)) == 2
    runner.close()
    agent.store.close()


@pytest.mark.slow
def test_reporting_once_answers_in_the_rounds_it_drew_and_is_silent_in_others(
    nats: Nats, tmp_path: Path
) -> None:
    first, each = int(time.time()) + 5, 2  # time to start, also on a busy machine
    asked = fresh_manifest(reporting="once", first=first, period=3, count=3, grace=600, each=each)
    state = tmp_path / "device"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        agent.wait_for("running for")
        wait_until(lambda: time.time() > first + 9, timeout=60)
        agent.wait_for("was counted", times=each)
        assert agent.terminate() == 0
    with EdgeClient(state) as client:
        member, spent = client.find(), client.store.spent(client.find())
        lines = [line.epsilon for line in client.store.ledger()]
    assert {number for _, number in tally.payloads} == set(member.drawn_rounds or ())
    assert all(len(found) == 1 for found in tally.payloads.values())
    assert lines == [asked.eps_1] * each
    assert (spent.reports, spent.exact) == (each, asked.eps_inf)


# --- F8 over real brokers: a collector's retained state delays a doubted clock's first draw -------


class WrongClock(SystemClock):
    """Ahead, and no time server has answered."""

    ahead = 200.0 * DAY

    def wall(self) -> float:
        return super().wall() + self.ahead

    def synchronised(self) -> bool:
        return False


@pytest.mark.slow
def test_a_clock_half_a_year_ahead_at_its_first_draw(broker: Broker, tmp_path: Path) -> None:
    """It would be silent for half a year; a broker's word delays the draw, and never causes one."""
    asked, clock, points = fresh_manifest(period=DAY), WrongClock(), list[str]()
    with (
        Tally(broker.port, asked) as tally,
        EdgeClient(
            tmp_path / "state",
            policy=ROOMY,
            clock=clock,
            entropy=bytes,  # draws at the first moment of a round
            timing=QUICK,
            trace=points.append,
        ) as client,
    ):

        def publish(sealed: int | None) -> None:
            state = State(digest8(asked), Presence.ONLINE, sealed)
            tally.publish(tally.topics.state, state.encode(), retain=True)

        publish(None)
        client.join(client.invitation(manifest=asked, broker=broker.url), device="device")
        heartbeat = tmp_path / "state" / "heartbeat"
        with closing(client.runner(lambda _: "wood")) as runner:
            runner.tick()
            tick_until(runner, lambda: Wait.CLOCK_DISPUTED in heartbeat.read_text())
            for sealed in (0, 3, None):
                publish(sealed)
                runner.tick()
            assert "report drawn" not in points
            clock.ahead = 0.0
            tick_until(runner, lambda: bool(tally.payloads))
    assert list(tally.payloads) == [("device", 0)]


# --- the owner's path exactly as docs/raspberry-pi.md has it, in an empty home --------------------


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
rounds = {{ first = {first}, period = 86400, count = 365, grace = 3600 }}
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "heat pump", "other"]
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A home with the files that the operator gave, and the campaign at its broker."""

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
    shutil.copy(data / "broker" / "invitations" / "kitchen.invitation", home)
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


def is_shown(wanted: list[str], printed: list[str]) -> bool:
    """Whether all that is wanted was printed in this order; `[...]` lets lines pass."""

    def fits(line: str, found: str) -> bool:
        head, cut, _ = line.partition(CUT)
        found = found.replace("\u00a0", " ").rstrip()
        return found.startswith(head) if cut else found == line.rstrip()

    at, anywhere = 0, False
    for line in wanted:
        if line == CUT:
            anywhere = True
            continue
        places = [i for i in range(at, len(printed)) if fits(line, printed[i])]
        if not places or (places[0] != at and not anywhere):
            return False
        at, anywhere = places[0] + 1, False
    return True


def test_the_installation_is_what_makes_the_program() -> None:
    """Its own lines take a network; what they install is checked with the wheel."""
    assert [command for command, _ in steps(INSTALL)] == [
        "python3 -m venv ~/allomfree",
        "~/allomfree/bin/pip install --quiet .",
        'export PATH="$HOME/allomfree/bin:$PATH"',
    ]


@pytest.mark.slow
def test_the_path_as_it_is_written(place: Place) -> None:
    assert not is_shown(["a", "c"], ["a", "b", "c"]), "a negative control"
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
    for (command, wanted), printed in zip(steps(PATH), parts, strict=True):
        lines = [line for line in printed.splitlines() if not line.startswith(("{", "Clock: "))]
        typed = "\n".join(wanted).replace("[y/N]: y\n\n", "[y/N]:\n")  # Enter is not echoed
        here = place.as_here(typed).split("\n") if wanted else []
        assert is_shown(here, lines), f"{command}\n{printed}"
    assert done.returncode == 0
    kept = place.home / ".local/state/allomfree-edge/credentials.json"
    assert kept.stat().st_mode & 0o077 == 0
    page = (place.home / "statement.html").read_text(encoding="utf-8")
    assert "What heats your home?" in page


# --- A10: on a real terminal, hostile text of files and brokers arrives escaped and short ---------


def assert_refused_on_a_terminal(*words: str | Path) -> None:
    """Run one command as a person does, and check all that reaches the terminal."""
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
    text = received.decode().replace("\r\n", "\n")
    assert process.returncode != 0, text
    assert "is not a field of a manifest" in text
    assert hidden_in(text) == set()
    assert len(text) < 4000


def test_a_hostile_manifest_of_a_file(tmp_path: Path) -> None:
    file, hostile = tmp_path / "heat.toml", "".join(ESCAPES)
    many = "".join(f"{toml(f'{hostile}{i}')} = 1\n" for i in range(3000))
    file.write_text(f"{many}{manifest_text()}", encoding="utf-8")
    join = ("edge_client", "join", "--manifest", file, "--broker", "mqtt://localhost")
    assert_refused_on_a_terminal(*join, "--state-dir", tmp_path / "state")
    assert_refused_on_a_terminal("collector", "plan", file, "--devices", "9")


def test_a_hostile_manifest_of_a_broker(broker: Broker, tmp_path: Path) -> None:
    asked, hostile = fresh_manifest(), "".join(ESCAPES)
    document = msgpack.unpackb(asked.to_bytes())
    payload = msgpack.packb(document | {f"{hostile}{i}": hostile for i in range(5)})
    with Tally(broker.port, asked) as tally:
        tally.publish(Topics(asked.campaign).manifest, payload, retain=True)
        address = f"mqtt://127.0.0.1:{broker.port}/allomfree/{asked.campaign}"
        state = ("--state-dir", tmp_path / "state")
        assert_refused_on_a_terminal("edge_client", "join", address, "--preview", *state)

"""Under systemd: READY, WATCHDOG and STOPPING arrive; SIGTERM ends it, what is queued stays."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edge_client import EdgeClient, Policy
from edge_client.agent import Due, Wait, due
from edge_client.clock import SystemClock
from edge_client.daemon import CampaignSchedule
from edge_client.records import Queued, Timing
from protocol_spec import Presence, State, digest8
from protocol_spec.programs.memory_broker import MemoryBroker
from testbed.brokers import Broker, Nats, Tally
from testbed.processes import free_port
from tests.support.campaigns import manifest
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
from tests.support.edge_processes import (
    AgentProcess,
    RoundClock,
    draw_now,
    fresh_manifest,
    joined,
    wait_until,
)


@contextmanager
def notify_socket(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + address[1:] if address.startswith("@") else address)
        channel.settimeout(30)
        yield channel


def wait_for(channel: socket.socket, word: str) -> str:
    while True:
        message = channel.recv(4096).decode()
        if word in message.splitlines():
            return message


@pytest.mark.parametrize(
    ("kind", "number"), [("path", signal.SIGTERM), ("abstract", signal.SIGINT)]
)
def test_notifications_and_the_end(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    asked, state = manifest(), tmp_path / "state"
    config = joined(state, asked, f"mqtt://127.0.0.1:{free_port()}")
    payload = draw_now(state)
    address = f"@allomfree-{os.getpid()}-{number}" if kind == "abstract" else f"{tmp_path}/n"
    with (
        notify_socket(address) as channel,
        AgentProcess(config, extra_environment={"NOTIFY_SOCKET": address}) as agent,
    ):
        wait_for(channel, "READY=1")
        watchdog = wait_for(channel, "WATCHDOG=1")
        assert "STATUS=BROKER_AWAY" in watchdog
        os.kill(agent.pid, number)
        wait_for(channel, "STOPPING=1")
        assert agent.process.wait(30) == 0
    assert not any("Traceback" in line["message"] for line in agent.lines)
    with EdgeClient(state) as client:
        assert [(r.payload, r.fate) for r in client.store.reports(asked.campaign)] == [
            (payload, "queued")
        ]


# --- A report every round, changed or not, as long as any other, at a random moment of the round.


SEED = 20_261_116
ROUNDS = 3_000
FUELS = ("wood", "wood", "gas", "wood", "oil")
PATIENT = Timing(resend=600.0, reconnect=600.0)


def distance_from_uniform(sample: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's, times the root of n: above 1.95 once in a thousand times."""
    ordered, n = sorted(sample), len(sample)
    gaps = (max((i + 1) / n - x, x - i / n) for i, x in enumerate(ordered))
    return max(gaps) * math.sqrt(n)


def test_the_moment_is_uniform_in_the_round(tmp_path: Path) -> None:
    asked = manifest(count=ROUNDS)
    clock = RoundClock(asked)
    schedule = CampaignSchedule(clock, Timing(), random.Random(SEED).randbytes)
    moments = []
    with EdgeClient(tmp_path / "state", clock=clock) as client:
        membership = client.join(
            client.invitation(manifest=asked, broker="mqtt://localhost"),
        )
    for clock.round in range(ROUNDS):
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


@pytest.mark.parametrize(("protocol", "k"), [("L-GRR", 300), ("L-OSUE", 41)])
def test_every_value_gives_the_same_length(protocol: str, k: int, tmp_path: Path) -> None:
    names = [f"v{i}" for i in range(k)]
    table = f'name = "a"\nquestion = "?"\nprotocol = "{protocol}"\nvalues = {json.dumps(names)}'
    asked = manifest(attributes=f"[[attributes]]\n{table}", max_values=k)
    clock = RoundClock(asked)
    policy = Policy(max_values=k, lifetime_budget=1e6, total_budget=1e6)
    lengths = set()
    with EdgeClient(tmp_path / "state", clock=clock, policy=policy) as client:
        client.join(
            client.invitation(manifest=asked, broker="mqtt://localhost"),
        )
        for clock.round, name in enumerate(names, start=300):  # numbers of the same length
            drawn = client.agent.draw(client.find(), lambda _, name=name: name)  # type: ignore[misc]
            assert isinstance(drawn, Queued)
            lengths.add(len(drawn.payload))
        assert len(client.store.memos(asked.campaign)) == k
    assert len(lengths) == 1


def test_no_round_is_left_out(tmp_path: Path) -> None:
    """A hundred days, the loop turning every few minutes, the value changing beyond the cap."""
    asked, clock, broker = daily(max_values=2), FakeClock(), MemoryBroker()
    tally, dice = MemoryTally(broker, asked), random.Random(SEED)
    agent = joined_agent(tmp_path / "state", clock, asked, device="device")
    entropy = random.Random(SEED).randbytes
    runner = runner_of(
        agent, lambda _: dice.choice(FUELS), make_link=broker.link, timing=PATIENT, entropy=entropy
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
def test_no_round_is_left_out_by_a_running_agent(nats: Nats, tmp_path: Path) -> None:
    """The same of `allomfree-edge run`, on rounds of two seconds."""
    asked, state = fresh_manifest(period=2, grace=60), tmp_path / "state"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        tally.wait_for(3)
        agent.terminate()
    rounds = sorted(number for _, number in tally.payloads)
    assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))
    with EdgeClient(state) as client:
        rows = client.store.reports(asked.campaign)
    assert all(asked.rounds.round_at(row.drawn) == row.round for row in rows)


# --- F8 over real brokers: a collector's retained state puts a doubted clock's first draw off.


class WrongClock(SystemClock):
    """Ahead by so many seconds, and no time server has answered."""

    ahead = 200.0 * DAY

    def wall(self) -> float:
        return super().wall() + self.ahead

    def synchronised(self) -> bool:
        return False


@pytest.mark.slow
def test_a_clock_half_a_year_ahead_at_its_first_draw(broker: Broker, tmp_path: Path) -> None:
    """It would be silent for half a year; a broker's word delays the draw, and never causes one."""
    asked, clock, points = fresh_manifest(period=DAY), WrongClock(), list[str]()
    state = State(digest8(asked), Presence.ONLINE, None)
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
        tally.publish(tally.topics.state, state.encode(), retain=True)
        invitation = client.invitation(manifest=asked, broker=broker.url)
        client.join(invitation, device="device")
        heartbeat = tmp_path / "state" / "heartbeat"
        with closing(client.runner(lambda _: "wood")) as runner:
            runner.tick()
            tick_until(runner, lambda: Wait.CLOCK_DISPUTED in heartbeat.read_text())
            for sealed in (0, 3, None):
                words = State(digest8(asked), Presence.ONLINE, sealed)
                tally.publish(tally.topics.state, words.encode(), retain=True)
                runner.tick()
            assert "report drawn" not in points
            clock.ahead = 0.0
            tick_until(runner, lambda: bool(tally.payloads))
    assert list(tally.payloads) == [("device", 0)]


# --- `allomfree-edge run` in a campaign that it answers in some rounds only, with short rounds.


PERIOD, COUNT, EACH = 3, 3, 2


@pytest.mark.slow
def test_the_daemon_answers_in_the_rounds_it_drew_and_is_silent_in_others(
    nats: Nats, tmp_path: Path
) -> None:
    first = int(time.time()) + 5  # time to start, also on a busy machine
    asked = daily(
        reporting="once",
        slug=f"t-{os.urandom(4).hex()}",
        first=first,
        period=PERIOD,
        count=COUNT,
        grace=600,
        each=EACH,
    )
    state = tmp_path / "device"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        agent.wait_for("running for")
        wait_until(lambda: time.time() > first + PERIOD * COUNT, timeout=60)
        agent.wait_for("was counted", times=EACH)
        assert agent.terminate() == 0
    with EdgeClient(state) as client:
        member, spent = client.find(), client.store.spent(client.find())
        lines = [line.epsilon for line in client.store.ledger()]
    assert {number for _, number in tally.payloads} == set(member.drawn_rounds or ())
    assert all(len(found) == 1 for found in tally.payloads.values())
    assert lines == [asked.eps_1] * EACH
    assert (spent.reports, spent.exact) == (EACH, asked.eps_inf)

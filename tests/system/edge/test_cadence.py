"""A report every round, changed or not, as long as any other, at a random moment of the round."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from edge_client import EdgeClient, Policy
from edge_client.agent import Due, due
from edge_client.daemon import CampaignSchedule
from edge_client.records import Queued, Timing
from protocol_spec.programs.memory_broker import MemoryBroker
from testbed.brokers import Nats, Tally
from tests.support.campaigns import manifest
from tests.support.edge import DAY, FIRST, FakeClock, MemoryTally, daily, joined_agent, runner_of
from tests.support.edge_processes.loops import RoundClock, fresh_manifest
from tests.support.edge_processes.processes import AgentProcess, joined

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

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
from edge_client.records import Queued
from tests.support.brokers import Nats
from tests.support.campaigns import manifest
from tests.support.edge_processes.loops import RoundClock
from tests.support.edge_processes.processes import AgentProcess, joined
from tests.support.tally import Tally

SEED = 20_261_116
ROUNDS = 3_000


def distance_from_uniform(sample: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's, times the root of n: above 1.95 once in a thousand times."""
    ordered, n = sorted(sample), len(sample)
    gaps = (max((i + 1) / n - x, x - i / n) for i, x in enumerate(ordered))
    return max(gaps) * math.sqrt(n)


def test_the_moment_is_uniform_in_the_round(tmp_path: Path) -> None:
    asked = manifest(count=ROUNDS)
    clock = RoundClock(asked)
    entropy = random.Random(SEED).randbytes
    moments = []
    with EdgeClient(tmp_path / "state", clock=clock, entropy=entropy) as client:
        membership = client.join(client.invitation(manifest=asked, broker="mqtt://localhost"))
        runner = client.runner(lambda _: "wood")
        for clock.round in range(ROUNDS):
            allowed = due(membership, clock)
            assert isinstance(allowed, Due)
            moment = runner._moment(membership, allowed)
            assert moment == runner._moment(membership, allowed), "chosen once a round"
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
    policy = Policy(max_values=k, lifetime_budget=1e6)
    lengths = set()
    with EdgeClient(tmp_path / "state", clock=clock, policy=policy) as client:
        client.join(client.invitation(manifest=asked, broker="mqtt://localhost"))
        for clock.round, name in enumerate(names, start=300):  # numbers of the same length
            drawn = client.agent.draw(client.find(), lambda _, name=name: name)  # type: ignore[misc]
            assert isinstance(drawn, Queued)
            lengths.add(len(drawn.payload))
        assert len(client.store.memos(asked.campaign)) == k
    assert len(lengths) == 1


@pytest.mark.slow
def test_no_round_is_left_out(nats: Nats, tmp_path: Path) -> None:
    """Rounds of two seconds, the value changing under the agent, beyond the cap at the end."""
    asked, state, value = manifest(period=2, grace=60, max_values=2), tmp_path / "s", tmp_path / "v"
    config = joined(state, asked, nats.url)
    config.write_text(
        f'state_dir = "{state}"\n[sources.fuel]\nkind = "json"\nfile = "{value}"\nfield = "fuel"\n'
    )
    fuels = ["wood", "wood", "gas", "wood", "oil"]
    value.write_text(json.dumps({"fuel": fuels[0]}))
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        for count, fuel in enumerate(fuels, start=1):
            agent.wait_for("drawn and stored", times=count)
            value.write_text(json.dumps({"fuel": fuel}))
        tally.wait_for(len(fuels))
        agent.terminate()
    rounds = sorted(number for _, number in tally.payloads)
    assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))
    assert len({len(payload) for _, payload in tally.deliveries}) == 1
    with EdgeClient(state) as client:
        rows = client.store.outbox(asked.campaign)
    assert all(asked.rounds.round_at(row.drawn) == row.round for row in rows)

"""P1 on real processes: an observer at the broker, and whoever reads what the agent prints.

The attack: with `edges = [20, 21, 22]` and eps_inf 0.02 an observer would learn in every round
whether the room is at 20 to 22 °C if a device outside of that range were silent.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from edge_client import Credentials, EdgeClient
from edge_client.records import Queued, Timing
from protocol_spec import (
    Manifest,
    Presence,
    State,
    Topics,
    digest8,
    receipt_page,
)
from testbed.agents import RoundClock
from testbed.brokers import Broker, Nats, Tally
from tests.support.agents import AgentProcess, edge, fresh_manifest, joined
from tests.support.brokers import Files, tls_broker
from tests.support.campaigns import manifest, second_manifest
from tests.support.edge import FIRST, QUICK, ROOM, ROOMY, receipt, tick_until
from tests.support.harness import ROOT
from tests.support.network import Peer, Proxy, Wire
from tests.support.processes import wait_until

LITTLE = {"eps_inf": 0.02, "eps_1": 0.01, "period": 1, "grace": 60, "attributes": ROOM}


def thermometer(file: Path, reading: object) -> None:
    """Let the thermometer's file show a reading; the agent never sees half of it."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"celsius": reading}))
    new.replace(file)


def reports_again(asked: Manifest, tally: Tally) -> None:
    """Until the observer has a report of a round that opened after this moment."""
    now = asked.rounds.round_at(time.time())
    assert now is not None
    wait_until(lambda: max((n for _, n in list(tally.payloads)), default=-1) > now)


@pytest.mark.slow
def test_an_observer_learns_nothing_from_silence(broker: Broker, tmp_path: Path) -> None:
    """In and out of the range, with a broken thermometer and with none: a report in each round."""
    asked = fresh_manifest(**LITTLE)
    file, state = tmp_path / "room.json", tmp_path / "state"
    config = joined(state, asked, broker.url)
    config.write_text(
        f'state_dir = "{state}"\n[sources.room]\nkind = "json"\nfile = "{file}"\n'
        'field = "celsius"\n'
    )
    with (
        Tally(broker.port, asked) as tally,
        AgentProcess(config, timing=Timing(step_seconds=0.2, source_retry_seconds=0.5)) as agent,
    ):
        reports_again(asked, tally)  # the thermometer was never there
        for reading in (21.5, 30.0):
            thermometer(file, reading)
            reports_again(asked, tally)
        file.unlink()
        reports_again(asked, tally)
        assert agent.is_running
    assert len({len(payload) for _, payload in tally.deliveries}) == 1
    with EdgeClient(state) as client:
        assert [line.epsilon for line in client.store.ledger()] == [0.02]


# --- what is printed -----------------------------------------------------------------------------

SOURCES = {
    "the first value": 'value = "oil"',
    "another": 'value = "gas"',
    "none of them": 'value = "marmalade"',
    "a program that fails": 'kind = "command"\ncommand = ["false"]',
}
ASKED = manifest(first=FIRST, period=86_400, max_values=3)
STOPPED_CLOCK = f"import time\ntime.time = lambda: {ASKED.rounds.opens(1) + 60}.0\n"
Printed = tuple[int, str, str]


def printed(place: Path, source: str) -> list[Printed]:
    """Exit codes and every byte in the second round, when the source is another."""
    state, config = place / "state", place / "edge.toml"
    shutil.rmtree(state, ignore_errors=True)
    with EdgeClient(state, policy=ROOMY, clock=RoundClock(ASKED.rounds)) as client:
        invitation = client.invitation(manifest=ASKED, broker="mqtt://127.0.0.1:1")
        client.join(invitation, device="device")
        client.agent.draw(client.find(), lambda _: "oil")
    config.write_text(f'state_dir = "{state}"\n[sources.fuel]\n{source}\n')
    # Python imports this before the program; what is measured with the monotonic clock goes on.
    (place / "sitecustomize.py").write_text(STOPPED_CLOCK)
    environment = {"PYTHONPATH": f"{place}:{ROOT}"}
    flags = ("--config", config, "--log-level", "debug")
    outputs: list[Printed] = []
    for words in (("report", "--all", "--timeout", "0"), ("status", "--json")):
        done = edge(*words, *flags, extra_environment=environment)
        outputs.append((done.returncode, done.stdout, done.stderr))
    return outputs


@pytest.mark.slow
def test_nothing_that_is_printed_depends_on_the_value(tmp_path: Path) -> None:
    """Byte for byte: logs at every level, status, JSON, exit codes. `show` is the owner's own."""
    found = {name: printed(tmp_path, source) for name, source in SOURCES.items()}
    expected = found.pop("the first value")
    assert "round 1: queued" in expected[0][1]
    assert [code for code, *_ in expected] == [1, 0], "no broker is there, and the agent says so"
    for name, output in found.items():
        assert output == expected, name


# --- P5: the lengths of TLS records do not reveal which question a device drew -------------------


APPLICATION_DATA: Final = 23
QUESTIONS: Final = """[[attributes]]
name = "heated"
question = "Is it heated?"
values = ["yes", "no"]
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "town"
question = "Where is it?"
protocol = "L-OSUE"
values = [{towns}]
"""


def asked() -> Manifest:
    """Answers of 1 byte and of 38."""
    towns = ", ".join(f'"t{i}"' for i in range(300))
    manifest = second_manifest(attributes=QUESTIONS.format(towns=towns))
    assert sorted(set(manifest.answer_lengths)) == [1, 38]
    return manifest


def records(stream: bytes) -> list[int]:
    """The lengths of the TLS records that carry data, as anybody on the way sees them."""
    lengths = []
    while len(stream) >= 5:
        kind, length = stream[0], int.from_bytes(stream[3:5])
        if kind == APPLICATION_DATA:
            lengths.append(length)
        stream = stream[5 + length :]
    return lengths


def longest_record(
    broker: Broker, campaign: Manifest, attribute: int, state: Path, ca: Path, device: str
) -> int:
    """Of a device that drew this question: that of its report."""
    points: list[str] = []
    credentials = Credentials(ca_file=str(ca))
    with Proxy(broker.port) as proxy:
        with EdgeClient(
            state, credentials=credentials, timing=QUICK, trace=points.append
        ) as client:
            url = f"mqtts://localhost:{proxy.port}"
            client.join(client.invitation(manifest=campaign, broker=url), device=device)
            client.store.execute("UPDATE campaign SET attribute_index = ?", (attribute,))
            client.store.set_status(campaign.campaign, "joined", 0)
            value = campaign.attributes[attribute].values[0]
            assert isinstance(client.agent.draw(client.find(), lambda _: value), Queued)
            assert client.find().attribute_index == attribute
            with closing(client.runner(lambda _: value)) as runner:
                tick_until(runner, lambda: "acknowledged" in points)
        return max(length for each in proxy.connections for length in records(each.from_client))


@pytest.mark.parametrize("kind", ["mosquitto", "nats"])
def test_the_question_does_not_show_in_the_records(kind: str, tmp_path: Path) -> None:
    files, campaign, ca = Files.made(tmp_path), asked(), tmp_path / "ca.pem"
    # A name one byte longer whose receipt page, which the record names too, is as long.
    digits = len(str(receipt_page(campaign, "device")))
    names = (f"device{i}" for i in range(10))
    longer_name = next(n for n in names if len(str(receipt_page(campaign, n))) == digits)
    with tls_broker(kind, files, files.server("localhost"), tmp_path / kind) as broker:
        first, *others, longer = (
            longest_record(broker, campaign, attribute, tmp_path / f"{attribute}{name}", ca, name)
            for attribute, name in ((0, "device"), (1, "device"), (2, "device"), (0, longer_name))
        )
    assert others == [first] * 2
    assert longer != first, "one byte more would be seen"


# --- R12: thousands of messages in a second: at most one draw a round, and nothing is rejoined ----


def flood(asked: Manifest, dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Manifests, states, receipts and garbage on the campaign's topics; none of them closes it."""
    topics = Topics(asked.campaign)
    others = [manifest(slug=f"other-{i}", period=1).to_bytes() for i in range(20)]
    for _ in range(1_000):
        yield topics.manifest, dice.choice([*others, asked.to_bytes()])
        sealed = dice.randrange(60_000)
        presence = dice.choice((Presence.ONLINE, Presence.OFFLINE))
        closed_other = State(dice.randbytes(8), Presence.CLOSED, sealed)
        yield (
            topics.state,
            dice.choice([closed_other, State(digest8(asked), presence, sealed)]).encode(),
        )
        page = receipt(asked, "device", dice.randrange(1000, 60_000))  # of a round to come
        yield page
        yield (
            dice.choice((topics.manifest, topics.state, page[0])),
            dice.randbytes(dice.randrange(60)),
        )


@pytest.mark.slow
def test_a_flood_causes_no_draw_of_a_running_agent(nats: Nats, tmp_path: Path) -> None:
    """R12, I16."""
    asked, state = fresh_manifest(period=1, grace=600), tmp_path / "state"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        agent.wait_for("was counted")
        for topic, payload in flood(asked, random.Random(1)):
            tally.send(topic, payload)
        agent.wait_for("was counted", times=agent.said("was counted") + 2)
        assert agent.is_running
        assert agent.terminate() == 0
    with EdgeClient(state) as client:
        assert client.find().manifest.to_bytes() == asked.to_bytes()
        rows = client.store.reports(asked.campaign)
        (memo,) = client.store.memos(asked.campaign).values()
        assert len(client.store.ledger()) == 1
    assert memo.reports == len(rows), "one draw for each round"
    assert all(asked.rounds.round_at(row.drawn) == row.round for row in rows)
    assert all(len(payloads) == 1 for payloads in tally.payloads.values())


def test_a_hostile_broker_causes_no_draw(tmp_path: Path) -> None:
    """The same straight into the agent's socket, subscribed or not, and a true receipt at last."""
    asked, points = manifest(), list[str]()

    def hostile(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        wire.send(*(wire.publication(*message) for message in flood(asked, random.Random(2))))
        wire.publish(*receipt(asked, "device", 0))
        wire.serve(lambda published: wire.puback(published.mid))

    with (
        Peer(hostile) as peer,
        EdgeClient(tmp_path / "state", trace=points.append, timing=QUICK) as client,
    ):
        client.join(client.invitation(manifest=asked, broker=peer.url), device="device")
        drawn = client.agent.draw(client.find(), lambda _: "wood")
        assert isinstance(drawn, Queued)
        with closing(client.runner(lambda _: "gas")) as runner:
            tick_until(runner, lambda: client.store.reports(asked.campaign)[0].fate == "counted")
        assert points.count("report drawn") == points.count("memo drawn") == 1
        assert [row.payload for row in client.store.reports(asked.campaign)] == [drawn.payload]
        assert client.find().manifest.digest == asked.digest

"""Brokers that are away, restart, die, fall silent, refuse or talk nonsense: nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_client import EdgeClient
from edge_client.clock import SystemClock
from edge_client.daemon import Runner
from edge_client.link import LEAVING_SECONDS, WINDOW, MakeLink, PahoLink, connect
from edge_client.records import Queued, Timing
from protocol_spec import (
    Manifest,
    Report,
    Topics,
    decode_report,
)
from protocol_spec.programs.settings import Credentials, parse_broker
from protocol_spec.programs.system import random_client_id
from testbed.agents import RoundClock
from testbed.brokers import Broker, Nats, Tally, leave
from testbed.processes import peak_memory_mib
from tests.support.agents import AgentProcess, draw_now, fresh_manifest, joined
from tests.support.campaigns import manifest, second_manifest
from tests.support.edge import QUICK, ROOMY, last_state, receipt, tick_until
from tests.support.hostile import ATTACKS, Hostile
from tests.support.network import (
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBSCRIBE,
    Peer,
    Proxy,
    Published,
    Wire,
    frame,
)
from tests.support.processes import wait_until

WRITTEN_OFF = "the connection was lost"
NONSENSE = 300
INSISTENT = Timing(
    step_seconds=0.005,
    resend_seconds=0.01,
    reconnect_seconds=0.005,
    reconnect_longest_seconds=0.005,
)
SOON = Timing(
    step_seconds=0.1, resend_seconds=1.0, reconnect_seconds=0.2, reconnect_longest_seconds=0.4
)


@contextmanager
def one_queued(
    state: Path,
    url: str,
    asked: Manifest | None = None,
    *,
    timing: Timing = QUICK,
    make_link: MakeLink = PahoLink,
) -> Iterator[tuple[Runner, bytes]]:
    """An agent in this process with this round's report drawn and not yet sent."""
    with EdgeClient(state, policy=ROOMY, timing=timing, make_link=make_link) as client:
        invitation = client.invitation(manifest=asked or manifest(), broker=url)
        drawn = client.agent.draw(client.join(invitation, device="device"), lambda _: "wood")
        assert isinstance(drawn, Queued)
        with closing(client.runner(lambda _: "wood")) as carrier:
            yield carrier, drawn.payload


@contextmanager
def many_queued(
    state: Path, count: int, url: str, *, keepalive: int = 60
) -> Iterator[tuple[Runner, Manifest, list[bytes], Path]]:
    """Rounds of an hour that are over, each with its report queued and not yet too late."""
    asked = manifest(first=int(time.time()) - count * 3600 - 5, grace=count * 7200)
    config, clock = joined(state, asked, url), RoundClock(asked.rounds)
    with EdgeClient(state, policy=ROOMY, clock=clock) as client:
        for clock.round in range(count):
            client.agent.draw(client.find(), lambda _: "wood")
        payloads = [row.payload for row in client.store.reports(asked.campaign)]
    with (
        EdgeClient(state, keepalive=keepalive, timing=QUICK) as client,
        closing(client.runner(lambda _: "wood")) as carrier,
    ):
        yield carrier, asked, payloads, config


def outbox(carrier: Runner) -> list[Queued]:
    (membership,) = carrier.agent.store.memberships()
    return carrier.agent.store.reports(membership.name)


def queued(carrier: Runner) -> list[bytes]:
    return [row.payload for row in outbox(carrier) if row.fate == "queued"]


# --- real brokers, the agent as a process --------------------------------------------------------


@pytest.mark.slow
def test_a_broker_that_restarts_without_its_sessions(own_broker: Broker, tmp_path: Path) -> None:
    asked, state, broker = manifest(), tmp_path / "state", own_broker
    config = joined(state, asked, broker.url)
    payload = draw_now(state)
    with AgentProcess(config, timing=SOON) as agent:
        with Tally(broker.port, asked, receipts=False, keep_session=True) as tally:
            tally.wait_for(1)
        broker.stop()
        shutil.rmtree(broker.directory)
        agent.wait_for("Connection refused; reports stay queued and are sent later")
        broker.start()
        with Tally(broker.port, asked, keep_session=True) as tally:
            agent.wait_for("round 0 was counted")
            assert tally.payloads == {("device", 0): {payload}}
        assert agent.said(WRITTEN_OFF) == 1


@pytest.mark.slow
def test_a_broker_killed_in_the_middle_of_delivery(own_broker: Broker, tmp_path: Path) -> None:
    broker = own_broker
    with many_queued(tmp_path / "state", 150, broker.url) as (_, asked, payloads, config):
        pass
    with AgentProcess(config, timing=SOON) as agent, Tally(broker.port, asked) as tally:
        tally.wait_for(20)
        broker.kill()
        agent.wait_for(WRITTEN_OFF)
        broker.start()
        agent.wait_for("was counted", times=150)
        assert {number: found for (_, number), found in tally.payloads.items()} == {
            number: {payload} for number, payload in enumerate(payloads)
        }


@pytest.mark.slow
def test_a_connection_that_falls_silent(nats: Nats, tmp_path: Path) -> None:
    """Half-open TCP: written off after a single unanswered ping, within 1.5 keepalives."""
    asked, state = fresh_manifest(), tmp_path / "state"
    with Proxy(nats.port) as proxy, Tally(nats.port, asked):
        config = joined(state, asked, proxy.url)
        draw_now(state)
        with AgentProcess(config, "--keepalive", "3") as agent:
            agent.wait_for("round 0 was counted")
            silent = proxy.hush()
            assert silent.client_left.wait(30)
            assert silent.in_silence.count(b"\xc0\x00") == 1
            agent.wait_for("the connection was lost (Keep alive timeout)")
            agent.wait_for("connected to", times=2)
    # Two of these without an answer, each noticed within a second, are one and a half of three.
    (asked_for,) = struct.unpack_from("!H", silent.from_client, 2 + 6 + 2)
    assert 2 * (asked_for + 1) <= 1.5 * 3


def test_frames_split_into_single_bytes(broker: Broker, tmp_path: Path) -> None:
    asked = fresh_manifest()
    with (
        Proxy(broker.port, one_by_one=True) as proxy,
        Tally(broker.port, asked) as tally,
        EdgeClient(tmp_path / "state") as client,
    ):
        client.join(client.invitation(manifest=asked, broker=proxy.url), device="device")
        assert [r.state for r in client.report({"fuel": "gas"})] == ["counted"]
        assert [len(found) for found in tally.payloads.values()] == [1]


# --- scripted brokers, the agent's loop in this process ------------------------------------------


@pytest.mark.parametrize("refusal", [b"\x00\x01", b"\x00\x84\x00"], ids=["3.1.1", "5"])
def test_a_broker_that_does_not_know_mqtt_5(refusal: bytes, tmp_path: Path) -> None:
    levels: list[int] = []

    def old(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        levels.append(wire.version)
        if wire.version == 5:
            wire.send(frame(CONNACK, refusal))
        else:
            wire.connack()
            wire.serve(lambda _: wire.hang_up())

    with Peer(old) as peer, one_queued(tmp_path / "state", peer.url) as (carrier, _):
        tick_until(carrier, lambda: len(levels) >= 4)
    assert levels[:4] == [5, 4, 4, 4]


def test_a_puback_that_refuses(tmp_path: Path) -> None:
    """Quota exceeded, three times, then taken: the owner sees why, and the bytes are the same."""
    payloads: list[bytes] = []

    def strict(wire: Wire) -> None:
        def answer(published: Published) -> None:
            payloads.append(published.payload)
            wire.puback(published.mid, 0x97 if len(payloads) <= 3 else 0)

        if wire.expect_connect():
            wire.connack()
            wire.serve(answer)

    with (
        Peer(strict) as peer,
        one_queued(tmp_path / "state", peer.url, timing=INSISTENT) as (carrier, payload),
    ):
        tick_until(carrier, lambda: "Quota exceeded" in last_state(carrier))
        assert last_state(carrier).startswith("REPORT_REFUSED")
        tick_until(carrier, lambda: len(payloads) > 3 and "REFUSED" not in last_state(carrier))
        assert queued(carrier) == [payload]
    assert set(payloads) == {payload}


def test_leaving_waits_for_the_answers_to_what_was_just_sent() -> None:
    """But not for long, if there are none."""
    answered: list[int] = []

    def slow(wire: Wire) -> None:
        def answer(published: Published) -> None:
            if published.payload:
                time.sleep(0.3)
                answered.append(published.mid)
                wire.puback(published.mid)

        if wire.expect_connect():
            wire.connack()
            wire.serve(answer)

    with Peer(slow) as peer:
        for payload in (b"report", b""):
            link = PahoLink(parse_broker(peer.url), Credentials())
            connect(link)
            link.publish("a/b", payload)
            began = time.monotonic()
            link.close()
            assert len(answered) == 1
            assert time.monotonic() - began < 2 * LEAVING_SECONDS


def test_duplicated_and_reordered_answers(tmp_path: Path) -> None:
    """PUBACKs backwards, twice and of nobody; receipts backwards, twice, before the PUBACKs."""
    held: list[int] = []
    seen: dict[int, set[bytes]] = {}

    def muddled(wire: Wire) -> None:
        def answer(published: Published) -> None:
            report = decode_report(published.payload)
            assert isinstance(report, Report)
            seen.setdefault(report.round, set()).add(published.payload)
            held.append(published.mid)
            rounds.append(report.round)
            if len(held) % 20 == 0:
                for number in rounds[:-21:-1] * 2:
                    wire.publish(*receipt(asked, "device", number))
                for mid in held[:-21:-1] * 2:
                    wire.puback(mid)
                    wire.puback(mid ^ 0x5555)

        rounds: list[int] = []
        if wire.expect_connect():
            wire.connack()
            wire.serve(answer)

    with (
        Peer(muddled) as peer,
        many_queued(tmp_path / "state", 60, peer.url) as (carrier, asked, payloads, _),
    ):
        tick_until(carrier, lambda: not queued(carrier))
        fates = {row.fate for row in outbox(carrier)}
    assert fates == {"counted"}
    assert seen == {number: {payload} for number, payload in enumerate(payloads)}


def test_a_broker_that_talks_nonsense(tmp_path: Path) -> None:
    """Bytes that are not MQTT cost the connection, never the agent."""
    noise = random.Random(5)
    connections: list[Wire] = []

    def babbling(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        connections.append(wire)
        if len(connections) > NONSENSE:
            wire.connack()
            wire.serve(lambda _: wire.publish(*receipt(asked, "device", 0)))
            return
        if noise.random() < 0.8:
            wire.connack()
        kind, length = noise.randrange(1, 16), noise.randrange(30)
        wire.send(frame(kind, noise.randbytes(length), noise.randrange(16)))
        wire.send(noise.randbytes(noise.randrange(30)))
        wire.hang_up()

    asked = manifest()
    with (
        Peer(babbling) as peer,
        one_queued(tmp_path / "state", peer.url, asked, timing=INSISTENT) as (carrier, payload),
    ):
        tick_until(carrier, lambda: len(connections) > NONSENSE)
        assert [row.payload for row in outbox(carrier)] == [payload]
        tick_until(carrier, lambda: not queued(carrier))


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    impatient = partial(PahoLink, answer_seconds=0.2)
    with (
        Peer(lambda wire: wire.serve(lambda _: None)) as peer,
        one_queued(tmp_path / "state", peer.url, make_link=impatient) as (carrier, payload),
    ):
        tick_until(carrier, lambda: "did not answer in time" in last_state(carrier))
        assert queued(carrier) == [payload]


# --- R16: never more unanswered reports than the window allows, also right after a reconnect ------


PENDING = 500


class Stingy:
    """Withholds PUBACKs until the client has nothing left to send but a ping, and counts them."""

    def __init__(self, receive_maximum: int | None) -> None:
        self.receive_maximum = receive_maximum
        self.most: list[int] = []
        self.rounds: set[int] = set()

    def __call__(self, wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack(receive_maximum=self.receive_maximum)
        self.most.append(0)
        unanswered: list[int] = []
        while (packet := wire.read()) is not None and packet.kind != DISCONNECT:
            if packet.kind == SUBSCRIBE:
                wire.suback(packet)
            elif packet.kind == PUBLISH:
                published = wire.published(packet)
                report = decode_report(published.payload)
                assert isinstance(report, Report)
                self.rounds.add(report.round)
                unanswered.append(published.mid)
                self.most[-1] = max(self.most[-1], len(unanswered))
            elif packet.kind == PINGREQ:
                wire.send(frame(PINGRESP))
                if len(self.most) == 1:
                    return  # at the first ping of the first connection
                while len(unanswered) > 1:  # it had every opportunity to send more, and did not
                    wire.puback(unanswered.pop(0))


@pytest.mark.slow
@pytest.mark.parametrize("receive_maximum", [None, 7], ids=["own window", "the broker's"])
def test_with_500_rows_pending(receive_maximum: int | None, tmp_path: Path) -> None:
    window = receive_maximum or WINDOW
    stingy = Stingy(receive_maximum)
    with (
        Peer(stingy) as peer,
        many_queued(tmp_path / "state", PENDING, peer.url, keepalive=1) as (carrier, *_),
    ):
        tick_until(carrier, lambda: len(stingy.rounds) > 3 * window - 3)
        assert len(queued(carrier)) == PENDING
    assert stingy.most == [window, window], "before the reconnect and after it"


# --- A5: no broker can make the agent use unbounded memory, and then it reports as before ---------


AT_ONCE = Timing(
    step_seconds=0.05, resend_seconds=1.0, reconnect_seconds=0.02, reconnect_longest_seconds=0.05
)
EXTRA_MIB = 20


@pytest.mark.slow
def test_an_agent_survives_every_attack_in_little_memory(tmp_path: Path) -> None:
    asked = manifest()

    def counting(wire: Wire) -> None:
        def receive(published: Published) -> None:
            wire.puback(published.mid)
            wire.publish(*receipt(asked, "device", 0))

        wire.connack()
        wire.serve(receive)

    hostile = Hostile(counting)
    with Peer(hostile) as peer:
        config = joined(tmp_path / "state", asked, peer.url)
        draw_now(tmp_path / "state")
        with AgentProcess(config, timing=AT_ONCE) as agent:
            wait_until(lambda: len(hostile.left) < len(ATTACKS))
            before = peak_memory_mib(agent.pid)
            agent.wait_for("round 0 was counted", timeout=120)
            assert peak_memory_mib(agent.pid) < before + EXTRA_MIB
            assert agent.said("the broker broke the rules of MQTT: it sent a SUBACK of") == 2
            assert agent.is_running
    assert hostile.left == []


# --- F2, P5: what a broker has acknowledged it keeps, however late the collector comes back -------


LEFT: Final = 1  # second until the deadline, by the device's clock


class JustBeforeTheDeadline(SystemClock):
    """Stands still there, so that a slow machine does not matter."""

    def __init__(self, asked: Manifest) -> None:
        self._now = float(asked.rounds.deadline(0) - LEFT)

    def wall(self) -> float:
        return self._now


@contextmanager
def session(port: int, name: str, pattern: str) -> Iterator[dict[str, bytes]]:
    """A collector's connection: its session outlives it. Yields what arrives."""
    arrived: dict[str, bytes] = {}
    subscribed = threading.Event()
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        name,
        clean_session=False,
        protocol=MQTTProtocolVersion.MQTTv311,
    )

    def on_message(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        arrived[message.topic] = bytes(message.payload)

    def on_connect(*_: Any) -> None:
        client.subscribe(pattern, 1)

    client.on_message, client.on_connect = on_message, on_connect
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        assert subscribed.wait(30)
        yield arrived
    finally:
        leave(client)


def send_one(state: Path, asked: Manifest, broker: Broker) -> tuple[str, bytes]:
    """A device's report, handed over and acknowledged a second before the deadline."""
    points: list[str] = []
    clock = JustBeforeTheDeadline(asked)
    with EdgeClient(state, clock=clock, timing=QUICK, trace=points.append) as client:
        joined = client.join(client.invitation(manifest=asked, broker=broker.url))
        drawn = client.agent.draw(joined, lambda _: "wood")
        assert isinstance(drawn, Queued)
        with closing(client.runner(lambda _: "wood")) as runner:
            tick_until(runner, lambda: "acknowledged" in points)
    return joined.topics.report(joined.device), drawn.payload


def test_a_collector_away_until_after_the_deadline_gets_every_report(
    broker: Broker, tmp_path: Path
) -> None:
    """F2: acknowledged reports do not expire, on NATS and mosquitto."""
    asked = second_manifest(slug=f"t-{os.urandom(4).hex()}", count=1, grace=0)
    name, pattern = random_client_id("collector"), Topics(asked.campaign).all_reports
    with session(broker.port, name, pattern):
        pass
    sent = dict(send_one(tmp_path / str(i), asked, broker) for i in range(5))
    time.sleep(2.5)  # the collector is away; what would expire does so meanwhile
    with session(broker.port, name, pattern) as arrived:
        wait_until(lambda: len(arrived) >= len(sent))
    assert arrived == sent


def test_a_publish_carries_no_property(tmp_path: Path) -> None:
    """P5: a message expiry interval would tell the device's clock to the second."""
    properties: list[int] = []

    def script(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        while (packet := wire.read()) is not None:
            if packet.kind == SUBSCRIBE:
                wire.suback(packet)
            elif packet.kind == PUBLISH:
                assert wire.version == 5
                topic = int.from_bytes(packet.body[:2])
                properties.append(packet.body[2 + topic + 2])
                wire.puback(wire.published(packet).mid)

    with Peer(script) as peer, one_queued(tmp_path / "state", peer.url) as (carrier, _):
        tick_until(carrier, lambda: bool(properties))
    assert set(properties) == {0}

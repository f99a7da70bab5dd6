"""Delivery of reports, over a broker in this process and with a clock moved by hand (I5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient
from edge_client.agent import Agent
from edge_client.daemon import Runner
from edge_client.delivery import ANSWER_SECONDS, FIRST_PAGES
from edge_client.records import Timing
from edge_client.status import HEARTBEAT_BYTES, HEARTBEAT_FILE, Heartbeat, last_heartbeat
from edge_client.store import Store
from protocol_spec import Presence, State, Topics, digest8
from protocol_spec.programs.memory_broker import DeviceLink, MemoryBroker
from protocol_spec.programs.mqtt import MQTT_5, Version
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUrl
from protocol_spec.programs.system import notify_systemd
from tests.support.campaigns import manifest
from tests.support.edge import (
    DAY,
    NOBODY,
    ROOMY,
    FakeClock,
    Joined,
    MemoryTally,
    agree,
    by_port,
    daily,
    joined_agent,
    last_state,
    only,
    receipt,
    runner_of,
)

SLOW = Timing(step_seconds=0.0, receipt_seconds=0.0)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def runner(agent: Agent, broker: MemoryBroker) -> Iterator[Runner]:
    with closing(runner_of(agent, lambda _: "wood", make_link=broker.link, timing=SLOW)) as made:
        yield made


def fates(agent: Agent) -> list[str]:
    return [row.fate for row in agent.store.reports(only(agent).name)]


def turn(runner: Runner, times: int = 5) -> None:
    for _ in range(times):
        runner.tick(wait=0.0)


def test_a_report_is_sent_until_a_receipt_comes(
    agent: Agent, clock: FakeClock, broker: MemoryBroker, runner: Runner
) -> None:
    tally = MemoryTally(broker, daily(), receipts=False)
    for _ in range(4):
        turn(runner)
        clock.pass_time(SLOW.resend_longest_seconds)
    assert len(tally.deliveries) == 4
    assert len(set(tally.deliveries)) == 1, "the same bytes each time"
    assert fates(agent) == ["queued"]
    tally.receipts = True
    turn(runner)
    assert fates(agent) == ["counted"]
    clock.pass_time(SLOW.resend_longest_seconds)
    turn(runner)
    assert len(tally.deliveries) == 5


def test_pauses_between_sendings_double(
    clock: FakeClock, broker: MemoryBroker, runner: Runner
) -> None:
    """With jitter at its smallest, half of 15, 30, 60, ... seconds, to half of 900."""
    tally, sent = MemoryTally(broker, daily(), receipts=False), list[float]()
    for second in range(3600):
        known = len(tally.deliveries)
        runner.tick(wait=0.0)
        sent += [float(second)] * (len(tally.deliveries) - known)
        clock.pass_time(1.0)
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert gaps == [8.0, 15.0, 30.0, 60.0, 120.0, 240.0, *[450.0] * (len(gaps) - 6)]
    assert len(gaps) > 10


class HastyClock(FakeClock):
    """Time passes with every look at it."""

    def boottime(self) -> float:
        self.pass_time(0.125)
        return self.uptime


def visits(state: Path, *values: str) -> tuple[list[tuple[str, float]], list[str], int]:
    """One visit in each round, with what happened when, what it returned, and what was sent."""
    clock, broker, points = HastyClock(), MemoryBroker(), list[tuple[str, float]]()
    tally = MemoryTally(broker, daily(max_values=2), receipts=False)
    agent = joined_agent(state, clock, tally.manifest, device="device")
    agent.store.close()

    def note(point: str) -> None:
        points.append((point, clock.uptime))

    said = list[str]()
    for value in values:
        with EdgeClient(
            state, clock=clock, make_link=broker.link, trace=note, policy=ROOMY, entropy=bytes
        ) as client:
            tally.receipts = value == values[-1]
            done = client.report_from(lambda _: value, timeout=30.0, visit=True)  # noqa: B023
            said += [each.text for each in done]
        note("left")
        clock.pass_time(DAY)
    return points, said, len(tally.deliveries)


def test_a_visit_ends_by_itself_and_says_what_became_of_every_report(tmp_path: Path) -> None:
    points, said, deliveries = visits(tmp_path / "state", "wood", "oil")
    assert said == ["sent, no receipt yet", "counted", "counted"]
    assert deliveries == 3, "each report once in a visit, the first one in both"
    assert [point for point, _ in points].count("left") == 2


def test_no_moment_of_a_visit_depends_on_the_value(tmp_path: Path) -> None:
    first, *others = (
        visits(tmp_path / "-".join(values), *values)
        for values in (("wood", "oil"), ("oil", "wood"), ("gas", "marmalade"))
    )
    assert others == [first] * 2


def test_a_deadline_ends_the_sending(agent: Agent, clock: FakeClock, runner: Runner) -> None:
    turn(runner)
    clock.pass_time(2 * DAY)
    turn(runner, 1)
    assert fates(agent)[0] == "missed"


def test_a_receipt_that_comes_with_the_end_counts(
    agent: Agent, broker: MemoryBroker, runner: Runner
) -> None:
    """The collector counted the report and closed the campaign before the agent stepped again."""
    tally = MemoryTally(broker, daily())
    closed = State(digest8(daily()), Presence.CLOSED, None).encode()
    broker.listen(tally.topics.all_reports, lambda _: broker.publish(tally.topics.state, closed))
    turn(runner)
    assert fates(agent) == ["counted"]
    assert only(agent).status == "left"
    decisions = [what for _, what in agent.store.decisions(only(agent).name)]
    assert decisions == ["joined", "left", "closed by the collector"]


def test_what_is_queued_when_the_campaign_ends_is_closed(
    agent: Agent, clock: FakeClock, broker: MemoryBroker, runner: Runner
) -> None:
    tally = MemoryTally(broker, daily(), receipts=False)
    turn(runner)
    broker.publish(tally.topics.state, State(bytes(8), Presence.CLOSED, None).encode())
    turn(runner)
    assert fates(agent) == ["queued"], "that was another campaign's end"
    broker.publish(tally.topics.state, State(digest8(daily()), Presence.CLOSED, None).encode())
    turn(runner)
    assert fates(agent) == ["queued"], "its receipt may be on its page"
    clock.pass_time(ANSWER_SECONDS)
    turn(runner)
    assert fates(agent) == ["closed"]


def test_what_the_owner_withdrew_is_not_sent_again(
    agent: Agent, state: Path, clock: FakeClock, broker: MemoryBroker, runner: Runner
) -> None:
    """Left and resumed by another process, between two turns of the loop."""
    tally = MemoryTally(broker, daily(), receipts=False)
    turn(runner)
    with Store(state, exclusive=False) as owner:
        owner.set_status(only(agent).name, "left", 0)
        owner.set_status(only(agent).name, "joined", 0)
    clock.pass_time(SLOW.resend_longest_seconds)
    turn(runner)
    assert fates(agent) == ["withdrawn"]
    assert len(tally.deliveries) == 1


def test_a_broker_that_returns_gets_what_has_no_receipt(
    agent: Agent, clock: FakeClock, broker: MemoryBroker, runner: Runner
) -> None:
    tally = MemoryTally(broker, daily(), receipts=False)
    turn(runner)
    broker.stop()
    turn(runner)
    assert last_state(runner).startswith("BROKER_AWAY: the connection was lost")
    broker.start()
    tally.receipts = True
    turn(runner)
    assert len(tally.deliveries) == 1, "not before its pause is over"
    clock.pass_time(SLOW.reconnect_seconds)
    turn(runner)
    assert [len(tally.deliveries), fates(agent)] == [2, ["counted"]]
    assert "BROKER_AWAY" not in last_state(runner)


def test_a_broker_that_breaks_every_connection_is_asked_less_and_less_often(
    agent: Agent, clock: FakeClock, broker: MemoryBroker
) -> None:
    """A5: one that carried something, or lasted, is reset to the shortest pause."""
    opened: list[float] = []

    def link(*where: Any, **how: Any) -> DeviceLink:
        opened.append(clock.boottime())
        return broker.link(*where, **how)

    carrier = runner_of(agent, lambda _: "wood", make_link=link, timing=SLOW)

    def pause_after(seconds: float) -> float:
        """From the end of a connection that lasted so long to the next."""
        before, ended = len(opened), clock.boottime() + seconds
        clock.pass_time(seconds)
        broker.stop()
        turn(carrier, 1)
        broker.start()
        while len(opened) == before:
            clock.pass_time(0.25)
            turn(carrier, 1)
        turn(carrier, 1)
        return opened[-1] - ended

    with closing(carrier):
        MemoryTally(broker, daily())
        turn(carrier)
        assert fates(agent) == ["counted"]
        pauses = [pause_after(0.1) for _ in range(6)]
        for failures, pause in enumerate(pauses):
            longest = min(SLOW.reconnect_longest_seconds, SLOW.reconnect_seconds * 2.0**failures)
            assert longest / 2 <= pause <= longest + 0.5
        pause_after(SLOW.stable_after_seconds)
        assert pause_after(0.1) <= SLOW.reconnect_seconds + 0.5


def test_one_broker_that_returns_does_not_hurry_another(
    joined: Joined, clock: FakeClock, broker: MemoryBroker
) -> None:
    """Each broker has its own connection; the other's reports keep their pauses."""
    servers = {1: broker, 2: MemoryBroker()}
    campaigns = {"mqtt://localhost:1": daily(slug="one"), "mqtt://localhost:2": daily(slug="two")}
    agent = joined()
    for url, campaign in campaigns.items():
        agree(agent, campaign, broker=url)
    tallies = [
        MemoryTally(server, campaign, receipts=False)
        for server, campaign in zip(servers.values(), campaigns.values())
    ]
    runner = runner_of(agent, lambda _: "wood", make_link=by_port(servers), timing=SLOW)
    turn(runner)
    broker.stop()
    broker.start()
    turn(runner)
    clock.pass_time(SLOW.reconnect_seconds)
    turn(runner)
    assert [len(tally.deliveries) for tally in tallies] == [2, 1]
    runner.close()


# --- what a broker retains is asked for again -----------------------------------------------------


class InattentiveLink(DeviceLink):
    """Loses the first page of receipts: it comes with QoS 0."""

    lost_pages = 0

    def step(self, timeout_seconds: float) -> list[Message]:
        arrived = super().step(timeout_seconds)
        pages = [message for message in arrived if "/receipt/" in (message.topic or "")]
        if not pages or self.lost_pages:
            return arrived
        self.lost_pages = len(pages)
        return [message for message in arrived if message not in pages]


def test_a_receipt_that_was_missed_is_asked_for_again(agent: Agent, clock: FakeClock) -> None:
    """A collector does not publish the same page again, whatever is sent to it."""

    server = MemoryBroker()

    def link(broker: BrokerUrl, *_: object, version: Version, **__: object) -> DeviceLink:
        return InattentiveLink(server, broker, version)

    tally = MemoryTally(server, daily())
    with closing(runner_of(agent, lambda _: "wood", make_link=link, timing=SLOW)) as runner:
        turn(runner)
        assert fates(agent) == ["queued"]
        clock.pass_time(SLOW.resend_longest_seconds)
        turn(runner)
    assert fates(agent) == ["counted"]
    assert len(tally.deliveries) == 2


class CountingLink(DeviceLink):
    """Counts the pages of receipts that it is sent."""

    pages = 0

    def step(self, timeout_seconds: float) -> list[Message]:
        arrived = super().step(timeout_seconds)
        CountingLink.pages += sum("/receipt/" in (message.topic or "") for message in arrived)
        return arrived


def test_a_page_is_read_only_while_a_receipt_may_be_on_it(agent: Agent, clock: FakeClock) -> None:
    """At most two for a report, though others on the page report all the time (A7)."""
    server, campaign = MemoryBroker(), daily()
    CountingLink.pages = 0

    def link(broker: BrokerUrl, *_: object, version: Version, **__: object) -> DeviceLink:
        return CountingLink(server, broker, version)

    def minute(*others: bytes) -> None:
        for _ in range(60):
            for content in others:
                server.publish(topic, content, retain=True)
            runner.tick(wait=0.0)
            clock.pass_time(1.0)

    tally = MemoryTally(server, campaign, receipts=False)
    timing = Timing(step_seconds=0.0)
    with closing(runner_of(agent, lambda _: "wood", make_link=link, timing=timing)) as runner:
        topic, page = receipt(campaign, only(agent).device, 0)
        minute(page[:-4] + b"else")
        resent = len(tally.deliveries) - 1
        assert CountingLink.pages == FIRST_PAGES + resent, "one for each time it was sent again"
        tally.receipts = True
        minute()
    assert fates(agent) == ["counted"]
    assert CountingLink.pages == FIRST_PAGES + resent + 1


def test_a_manifest_that_the_broker_did_not_give_at_once(state: Path) -> None:
    """A broker may accept a subscription just before it retains what it has passed on."""
    campaign, server, asked = manifest(), MemoryBroker(), list[str]()

    class Late(DeviceLink):
        def subscribe(self, filters: Iterable[str], *, qos: int = 0) -> None:
            asked.extend(filters)
            super().subscribe(filters, qos=qos)
            server.retained[Topics(campaign.campaign).manifest] = campaign.to_bytes()

    def link(broker: BrokerUrl, *_: object, **__: object) -> Late:
        return Late(server, broker, MQTT_5)

    with EdgeClient(state, make_link=link) as client:
        place = f"{NOBODY}/allomfree/{campaign.campaign}"
        assert client.invitation(place, timeout=0.2).manifest == campaign
    assert len(asked) == 2


# --- the heartbeat: the running agent's status, for other processes -------------------------------


def test_a_heartbeat_is_read_as_it_was_written(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path)
    heartbeat.write("waiting for this round's moment", 3)
    beat = last_heartbeat(tmp_path)
    assert beat is not None
    assert (beat["pid"], beat["queued"]) == (os.getpid(), 3)
    assert beat["state"] == "waiting for this round's moment"
    (tmp_path / HEARTBEAT_FILE).write_bytes(b"")
    heartbeat.write("waiting for this round's moment", 3)
    assert last_heartbeat(tmp_path) is None, "nothing has changed, so nothing is written"
    heartbeat.write("fine", 1)
    assert last_heartbeat(tmp_path)


@pytest.mark.parametrize("letter", ["x", '"', "\\", "ß", "😀", "\udcff"])
def test_its_size_never_changes_and_any_text_can_be_read(tmp_path: Path, letter: str) -> None:
    heartbeat = Heartbeat(tmp_path)
    for text in ("short", letter * 5000, ""):
        heartbeat.write(text, 10**9)
        assert (tmp_path / HEARTBEAT_FILE).stat().st_size == HEARTBEAT_BYTES
        beat = last_heartbeat(tmp_path)
        assert beat is not None
        assert len(beat["state"]) >= min(len(text), 100)


def test_no_heartbeat(tmp_path: Path) -> None:
    """Damaged, of an agent that has ended, or in a directory that is gone."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    record = {"pid": ended.pid, "state": "fine", "queued": 0, "at": 0}
    damaged = ("", "{", "null", "[]", "3", "{}", '{"pid": "x"}', '{"pid": null}', '{"pid": 1e99}')
    for content in (json.dumps(record), *damaged, "\0" * 99):
        (tmp_path / HEARTBEAT_FILE).write_text(content)
        assert last_heartbeat(tmp_path) is None, content
    heartbeat = Heartbeat(tmp_path / "gone")
    heartbeat.write("fine", 0)
    assert heartbeat.text == "fine"
    assert last_heartbeat(tmp_path / "gone") is None


def test_a_service_manager_that_does_not_listen_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify_systemd("READY=1")

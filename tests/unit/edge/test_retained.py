"""What a broker keeps is asked for again: it may take a subscription between handing a message on
and keeping it, and then says nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from edge_client import EdgeClient
from edge_client.agent import Agent
from edge_client.daemon import Runner
from edge_client.records import Timing
from protocol_spec import Topics
from protocol_spec.programs.memory_broker import DeviceLink, MemoryBroker
from protocol_spec.programs.mqtt import MQTT_5, Version
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUrl
from tests.support.campaigns import manifest
from tests.support.edge import NOBODY, FakeClock, MemoryTally, daily, only, runner_of

SLOW = Timing(step=0.0)


def fates(agent: Agent) -> list[str]:
    return [row.fate for row in agent.store.reports(only(agent).name)]


def turn(runner: Runner) -> None:
    for _ in range(3):
        runner.tick(wait=0.0)


class InattentiveLink(DeviceLink):
    """Hears what is retained when it subscribes, and nothing live: a page comes with QoS 0."""

    def step(self, timeout_seconds: float) -> list[Message]:
        return [message for message in super().step(timeout_seconds) if message.retained]


def test_a_receipt_that_passed_by_is_asked_for_again(agent: Agent, clock: FakeClock) -> None:
    """A collector does not publish the same page again, whatever is sent to it."""

    server = MemoryBroker()

    def link(broker: BrokerUrl, *_: object, version: Version, **__: object) -> DeviceLink:
        return InattentiveLink(server, broker, version)

    tally = MemoryTally(server, daily())
    with closing(runner_of(agent, lambda _: "wood", make_link=link, timing=SLOW)) as runner:
        turn(runner)
        assert fates(agent) == ["queued"]
        clock.pass_time(SLOW.resend_longest)
        turn(runner)
    assert fates(agent) == ["counted"]
    assert len(tally.deliveries) == 2


def test_a_manifest_that_the_broker_did_not_give_at_once(state: Path) -> None:
    """It may take a subscription just before it keeps what it has handed on."""
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

"""A collector's data directory of the previous release opens, and goes on where it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol_spec import (
    Outcome,
    Rejected,
    Report,
    Result,
    Topics,
    decode_report,
    decode_result,
)
from testbed.brokers import Nats
from tests.support.collector_processes.wire import Publisher, Watcher
from tests.support.installed import Checkout
from tests.support.previous import FLEET, FORGOTTEN, REVOKED, Previous, moment, report, rows, until

pytestmark = pytest.mark.slow

OTHER_ATTRIBUTE = 1  # than that of the first device


class Today:
    """Today's collector on the files of the previous release."""

    def __init__(self, directory: Path) -> None:
        self.previous = Previous.unpacked(directory)
        self.fleet = self.previous.manifest("fleet")
        self.database = directory / "collector/collector.db"
        (directory / "home").mkdir()
        self.programs = Checkout(directory / "home")
        self.place = ("--config", "/dev/null", "--data-dir", directory / "collector")

    def collector(self, *words: object, at: int) -> str:
        return self.programs.run("collector", *words, *self.place, clock=moment(at))

    @contextmanager
    def collecting(self, broker: Nats, at: int) -> Iterator[Watcher]:
        """At work in a round; yields what it publishes."""
        address = ("--broker", broker.url, "--listen", "off")
        run = ("run", *self.place, *address)
        with (
            Watcher(broker.port, "allomfree/v1/+/pub/#") as watcher,
            self.programs.running("collector", *run, clock=moment(at)),
        ):
            watcher.wait_for_topic(Topics(self.fleet.campaign).state)
            yield watcher

    def export(self, slug: str, at: int) -> str:
        campaign = self.previous.facts["campaigns"][slug]
        return self.collector("export", campaign, "--round", "all", "--format", "csv", at=at)

    def outcomes(self) -> Counter[tuple[int, str]]:
        query = "SELECT round, outcome.name, n FROM outcome JOIN campaign ON id = campaign"
        found = rows(self.database, f"{query} WHERE campaign.name LIKE 'fleet%'")
        return Counter({(number, name): n for number, name, n in found})

    def results(self) -> dict[str, bytes]:
        """Sealed results by the topic each is published on."""
        names = [attribute.name for attribute in self.fleet.attributes]
        query = "SELECT name, attribute, round, message FROM result JOIN campaign ON id = campaign"
        return {
            Topics(campaign).result(names[attribute], number): message
            for campaign, attribute, number, message in rows(self.database, query)
            if number >= 0
        }


@pytest.fixture
def today(tmp_path: Path) -> Today:
    return Today(tmp_path)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Nats]:
    """A broker that has never heard of these campaigns."""
    with Nats(tmp_path / "nats") as running:
        yield running


def published(facts: dict[str, Any], slug: str) -> dict[str, bytes]:
    """The results of single rounds that the release published."""
    campaign = facts["campaigns"][slug]
    return {
        topic: bytes.fromhex(payload)
        for topic, payload in facts["results"].items()
        if f"/{campaign}/" in topic and topic.rsplit("/", 1)[1].isdecimal()
    }


def test_sealed_results_are_exported_as_they_were(today: Today) -> None:
    for slug, text in today.previous.facts["exports"].items():
        assert with_columns_behind(text.splitlines(), today.export(slug, at=5).splitlines())
    assert set(published(today.previous.facts, "fleet").items()) <= set(today.results().items())


def test_an_open_round_goes_on_and_is_sealed(today: Today, broker: Nats) -> None:
    """Duplicates stay duplicates, an attribute is for life, the revoked stay out, n adds up."""
    fleet, before = today.fleet, today.outcomes()
    known = today.results()
    again = [report(fleet, device, 4) for device in FLEET[:3]]
    new = [report(fleet, FLEET[3], 4), report(fleet, FORGOTTEN, 4)]
    messages = [*again, *new, other_bits(today), other_attribute(today), report(fleet, REVOKED, 4)]
    wanted = {
        (4, Outcome.DUPLICATE): 3,
        (4, Outcome.ACCEPTED): 2,
        (4, Outcome.CONFLICT): 1,
        (5, Outcome.ATTRIBUTE_CHANGED): 1,
        (-1, Outcome.REVOKED): 1,
    }
    with today.collecting(broker, at=5), Publisher(broker.port) as sender:
        sender.send(messages)
        until(lambda: today.outcomes() - before == Counter(wanted))
    today.collector("seal", fleet.campaign, at=6)
    topics = [Topics(fleet.campaign).result(a.name, 4) for a in fleet.attributes]
    assert sum(decoded(today.results()[topic]).n for topic in topics) == 4 + 2, (
        "three of the fleet and an agent before, two now"
    )
    assert set(known.items()) <= set(today.results().items())
    lines = today.export("fleet", at=6).splitlines()
    for line in today.previous.facts["exports"]["fleet"].splitlines():
        pooled = line.split(",")[3] == ""
        assert pooled or any(with_columns_behind([line], [now]) for now in lines)


def with_columns_behind(before: list[str], now: list[str]) -> bool:
    """Whether lines are those of before: a column may only have been added at the end."""
    behind = all(f"{new},".startswith(f"{old},") for old, new in zip(before, now))
    return behind and len(before) == len(now)


def other_bits(today: Today) -> tuple[str, bytes]:
    return report(today.fleet, FLEET[1], 4, attempt=1)


def other_attribute(today: Today) -> tuple[str, bytes]:
    """The first device answers another question than it always did."""
    topic, payload = report(today.fleet, FLEET[0], 5)
    made = decode_report(payload)
    assert not isinstance(made, Rejected)
    assert made.attribute != OTHER_ATTRIBUTE
    body = today.fleet.body_formats[OTHER_ATTRIBUTE].encode(0)
    return topic, Report(made.digest8, 5, OTHER_ATTRIBUTE, body).encode()


def decoded(payload: bytes) -> Result:
    result = decode_result(payload)
    assert not isinstance(result, Rejected)
    return result


def test_results_that_nobody_has_seen_are_published_byte_for_byte(
    today: Today, broker: Nats
) -> None:
    """Of the campaign that was closed while no broker was there."""
    ended = today.previous.manifest("ended")
    waiting = [Topics(ended.campaign).result(a.name, 4) for a in ended.attributes]
    stored = today.results()
    with today.collecting(broker, at=5) as watcher:
        for topic in waiting:
            assert watcher.wait_for_topic(topic) == stored[topic]


def test_devices_are_enrolled_beside_those_of_before(today: Today) -> None:
    place = today.previous.directory / "broker"
    password = (place / "credentials/kitchen/password").read_bytes()
    today.collector("enrol", "cellar", "--broker-dir", place, at=5)
    users = (place / "users.conf").read_text()
    assert "kitchen" in users
    assert "cellar" in users
    assert "garden" not in users, "revoked by the previous release"
    assert (place / "credentials/kitchen/password").read_bytes() == password

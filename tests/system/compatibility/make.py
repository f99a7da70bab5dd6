"""Make the files of a release, for the tests beside this file: what it left must open for ever.

    python tests/system/compatibility/make.py CHECKOUT tests/system/compatibility/previous.tar.gz

CHECKOUT holds the release with an environment in .venv. Its own programs do everything, against a
real broker and with a clock that stands still at chosen moments (rounds of ten seconds from
2027-01-15):

    collector/   two campaigns. `fleet` is open: rounds 0 to 2 are sealed, round 4 has reports.
                 `ended` was sealed and closed while no broker was there: round 4 is unpublished.
                 A device was forgotten, another revoked, one sent a duplicate and a conflict.
    broker/      what `broker-config nats` and `enrol` wrote, with one of two devices revoked
    agent/       joined to both campaigns, `ended` paused. Its report of round 4 was counted, that
                 of round 5 waits in the outbox.
    facts.json   what the release itself said about all this, and the options of its commands
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from protocol_spec import (
    Manifest,
    Presence,
    Rejected,
    Request,
    RequestKind,
    Topics,
    decode_state,
    digest8,
)
from testbed.brokers import Nats
from testbed.processes import free_port
from tests.support.collector_processes.wire import Publisher, Watcher, retained
from tests.support.installed import Checkout, commands, options
from tests.support.previous import (
    FLEET,
    FORGOTTEN,
    MADE,
    MANIFEST,
    REVOKED,
    moment,
    report,
    rows,
    until,
)


class Release:
    """The release at work in a directory of its own."""

    def __init__(self, checkout: Path, directory: Path) -> None:
        home = directory / "home"
        home.mkdir()
        self.programs = Checkout(home, checkout, str(checkout / ".venv/bin/python"))
        self.data, self.agent = directory / "collector", directory / "agent"
        self.broker_files = directory / "broker"
        self.broker = Nats(directory / "nats")
        self.manifests: dict[str, Manifest] = {}
        self.round = 0

    def collector(self, *words: object) -> str:
        place = ("--config", "/dev/null", "--data-dir", self.data)
        return self.programs.run("collector", *words, *place, clock=moment(self.round))

    def edge(self, *words: object) -> str:
        place = ("--config", "/dev/null", "--state-dir", self.agent)
        return self.programs.run("edge", *words, *place, clock=moment(self.round))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """The collector at work, from when it said that it is there."""
        place = ("--config", "/dev/null", "--data-dir", self.data, "--listen", "off")
        broker = ("--broker", self.broker.url, "--log-level", "info")
        states = [Topics(manifest.campaign).state for manifest in self.manifests.values()]
        with (
            self.programs.running("collector", "run", *place, *broker, clock=moment(self.round)),
            Watcher(self.broker.port, *states) as watcher,
        ):
            watcher.wait_for(lambda: all(online(watcher.latest.get(topic)) for topic in states))
            yield

    def open_campaigns(self, directory: Path) -> None:
        for slug in ("fleet", "ended"):
            file = directory / f"{slug}.toml"
            file.write_text(MANIFEST.format(slug=slug), encoding="utf-8")
            self.collector("open", file, "--broker", self.broker.url)
            self.manifests[slug] = Manifest.from_file(file)

    def send(self, number: int, devices: list[str], *extra: tuple[str, bytes]) -> None:
        """Reports of a round to both campaigns; returns once all of them have an outcome."""
        before = self.received()
        messages = [
            report(manifest, device, number)
            for manifest in self.manifests.values()
            for device in devices
        ]
        with Publisher(self.broker.port) as publisher:
            publisher.send([*messages, *extra])
        wanted = before + len(messages) + len(extra)
        until(lambda: self.received() == wanted)

    def unpublished(self) -> list[tuple[Any, ...]]:
        query = "SELECT attribute, round FROM result WHERE published = 0 AND round >= 0"
        return rows(self.data / "collector.db", query)

    def received(self) -> int:
        return sum(
            n
            for _, _, n in rows(self.data / "collector.db", "SELECT campaign, name, n FROM outcome")
        )


def online(payload: bytes | None) -> bool:
    state = decode_state(payload or b"")
    return not isinstance(state, Rejected) and state.presence is Presence.ONLINE


def work(release: Release, directory: Path) -> dict[str, bytes]:
    """Live through the rounds; returns what the broker kept of the collector at the end."""
    with release.broker as broker:
        release.open_campaigns(directory)
        fleet = release.manifests["fleet"]
        with release.collecting():
            release.send(0, FLEET)
            forget(release, FORGOTTEN)
        release.collector("revoke", REVOKED)
        release.round = 2
        with release.collecting():
            release.send(1, FLEET[:4])
            twice, other = report(fleet, FLEET[0], 1), report(fleet, FLEET[1], 1, attempt=1)
            release.send(2, [], twice, other, report(fleet, REVOKED, 2))
        release.round = 4
        with release.collecting():
            release.send(4, FLEET[:3])
            join(release)
            until(lambda: sealed(release) == 6 and not release.unpublished())
            kept = retained(broker.port, "allomfree/v1/#")
        release.round = 5
        release.edge("report", "--value", "fuel=wood", "--value", "heat=35", "--timeout", 2)
    return kept


def sealed(release: Release) -> int:
    return len(rows(release.data / "collector.db", "SELECT * FROM round"))


def forget(release: Release, device: str) -> None:
    """A device's request, and the collector's answer."""
    manifest = release.manifests["fleet"]
    topics = Topics(manifest.campaign)
    request = Request(digest8(manifest), RequestKind.FORGET, bytes(range(8))).encode()
    answer = topics.response(device)
    with Watcher(release.broker.port, answer) as watcher, Publisher(release.broker.port) as sender:
        sender.send([(topics.request(device), request)])
        watcher.wait_for_topic(answer)


def join(release: Release) -> None:
    for manifest in release.manifests.values():
        address = f"{release.broker.url}/allomfree/{manifest.campaign}"
        release.edge("join", address, "--yes")
    release.edge("pause", release.manifests["ended"].campaign)
    release.edge("report", "--value", "fuel=wood", "--value", "heat=35", "--timeout", 30)


def end(release: Release) -> None:
    """With no broker there: a campaign is closed, devices are enrolled."""
    nowhere = f"mqtt://127.0.0.1:{free_port()}"
    ended = release.manifests["ended"].campaign
    release.collector("seal", ended, "--early", "--broker", nowhere)
    release.collector("close", ended, "--yes", "--broker", nowhere)
    assert release.unpublished(), "the tests are about results that nobody has seen yet"
    place = ("--broker-dir", release.broker_files)
    release.collector("broker-config", "nats", "--host", "localhost", *place)
    release.collector("enrol", "kitchen", "garden", *place)
    release.collector("revoke", "garden", *place)


def facts(release: Release, kept: dict[str, bytes]) -> dict[str, Any]:
    campaigns = {slug: manifest.campaign for slug, manifest in release.manifests.items()}
    exports = {
        slug: release.collector("export", campaign, "--round", "all", "--format", "csv")
        for slug, campaign in campaigns.items()
    }
    return {
        "campaigns": campaigns,
        "exports": exports,
        "results": {topic: payload.hex() for topic, payload in kept.items() if "/result/" in topic},
        "options": {program: help_of(release, program) for program in ("collector", "edge")},
    }


def help_of(release: Release, program: str) -> dict[str, list[str]]:
    def shown(*words: str) -> str:
        return release.programs.run(program, *words, "--help", clock=moment(0))

    return {name: options(shown(name)) for name in commands(shown())}


def archive(file: Path, directory: Path) -> None:
    """Without times and owners, so that the same files make the same archive."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = MADE, 0, 0, "", ""
        return member

    with tarfile.open(file, "w:gz") as made:
        for name in ("collector", "broker", "agent", "facts.json", "fleet.toml", "ended.toml"):
            made.add(directory / name, name, filter=plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("archive", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        release = Release(chosen.checkout.resolve(), directory)
        kept = work(release, directory)
        end(release)
        told = json.dumps(facts(release, kept), indent=1, ensure_ascii=False)
        (directory / "facts.json").write_text(told, encoding="utf-8")
        archive(chosen.archive, directory)


if __name__ == "__main__":
    main()

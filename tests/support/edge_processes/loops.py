"""The agent's loop in the test's own process and thread, one turn at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from edge_client import EdgeClient
from edge_client.clock import SystemClock
from edge_client.daemon import Runner
from edge_client.link import MakeLink, PahoLink
from edge_client.records import Draw, Membership, Queued, Timing
from edge_client.store import Store
from protocol_spec import Manifest, Randomiser, make_report
from tests.support.campaigns import manifest
from tests.support.edge import QUICK, ROOMY
from tests.support.edge_processes.processes import joined


def fresh_manifest(**options: object) -> Manifest:
    """A campaign that no other test has, for brokers that several tests use."""
    return manifest(slug=f"t-{os.urandom(4).hex()}", **options)


@contextmanager
def one_queued(
    state: Path,
    url: str,
    asked: Manifest | None = None,
    *,
    timing: Timing = QUICK,
    make_link: MakeLink = PahoLink,
) -> Iterator[tuple[Runner, bytes]]:
    """An agent with this round's report drawn and not yet sent."""
    with EdgeClient(state, policy=ROOMY, timing=timing, make_link=make_link) as client:
        invitation = client.invitation(manifest=asked or manifest(), broker=url)
        drawn = client.agent.draw(
            client.join(invitation, device="device"),
            lambda _: "wood",
        )
        assert isinstance(drawn, Queued)
        with closing(client.runner(lambda _: "wood")) as carrier:
            yield carrier, drawn.payload


@contextmanager
def many_queued(
    state: Path, count: int, url: str, *, keepalive: int = 60
) -> Iterator[tuple[Runner, Manifest, list[bytes], Path]]:
    """Rounds of an hour that are over, each with its report queued and not yet too late."""
    asked = manifest(first=int(time.time()) - count * 3600 - 5, grace=count * 7200)
    config = joined(state, asked, url)
    with EdgeClient(state, keepalive=keepalive, timing=QUICK) as client:
        payloads = fill_outbox(client.store, client.find(), range(count))
        with closing(client.runner(lambda _: "wood")) as carrier:
            yield carrier, asked, payloads, config


def outbox(carrier: Runner) -> list[Queued]:
    (membership,) = carrier.agent.store.memberships()
    return carrier.agent.store.reports(membership.name)


def queued(carrier: Runner) -> list[bytes]:
    return [row.payload for row in outbox(carrier) if row.fate == "queued"]


class RoundClock(SystemClock):
    """Stands at the first instant of the round it is told."""

    def __init__(self, asked: Manifest) -> None:
        self._rounds = asked.rounds
        self.round = 0

    def wall(self) -> float:
        return float(self._rounds.opens(self.round))

    def boot(self) -> str:
        return f"boot {self.round}"


def fill_outbox(store: Store, membership: Membership, rounds: Iterable[int]) -> list[bytes]:
    """Queue a report for each of these rounds, as if drawn when they were open."""
    payloads: list[bytes] = []
    randomiser, schedule = Randomiser(membership.calibration), membership.manifest.rounds
    memo = randomiser.memoize(0)
    for number in rounds:
        body = randomiser.report(memo)
        report = make_report(membership.manifest, number, membership.attribute_index, body)
        payloads.append(report.encode())
        draw = Draw(
            round=number,
            value=0,
            payload=payloads[-1],
            deadline=schedule.deadline(number),
            at=schedule.opens(number),
            boot="an earlier boot",
            round_opened=0.0,
            new_memo=memo if len(payloads) == 1 else None,
        )
        store.record(membership, draw)
    return payloads

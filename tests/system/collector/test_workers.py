"""Several workers on a real broker and a real PostgreSQL: killed, paused, stopped, and exact."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from protocol_spec import Request, RequestKind, digest8, receipt_tag
from testbed.brokers import Broker, publish
from tests.support.collector_processes import Launcher, Site
from tests.support.databases import snapshot
from tests.support.processes import wait_until

pytestmark = pytest.mark.needs("postgres")
MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(tmp_path: Path, broker: Broker, launcher: Launcher) -> Iterator[MakeSite]:
    with ExitStack() as stack:
        yield lambda devices, rest: stack.enter_context(
            closing(Site(tmp_path / "site", broker, launcher, devices, rest=rest))
        )


def test_every_report_is_counted_once_whoever_dies(make_site: MakeSite) -> None:
    """Two workers; the leader is killed -9 in the middle and the other stopped in good order."""
    site = make_site(60, 12)
    first, second = site.start("a"), site.start("b")
    leader = site.wait_for_leader()
    runs = {site.worker_of(run): run for run in (first, second)}
    publish(site.broker.url, site.reports()[:20])
    runs[leader].kill()
    publish(site.broker.url, site.reports()[20:40])
    third = site.start("a" if runs[leader] is first else "b")
    follower = next(run for number, run in runs.items() if number != leader)
    wait_until(lambda: len(site.live()) >= 2)
    assert follower.terminate() == 0
    publish(site.broker.url, site.reports()[40:])
    publish(site.broker.url, site.reports())  # as devices do that see no receipt
    site.wait_until_sealed()
    assert site.counts() == [1] * 60
    assert third.is_running
    wait_until(lambda: len(site.tags()) == 60)


def test_a_leader_that_was_paused_changes_nothing(make_site: MakeSite) -> None:
    """SIGSTOP past its lease: another leads and seals; SIGCONT: no page and no round changes."""
    site = make_site(30, 12)
    runs = [site.start("a"), site.start("b")]
    leader = site.wait_for_leader()
    old = next(run for run in runs if site.worker_of(run) == leader)
    publish(site.broker.url, site.reports()[:15])
    publish(site.broker.url, site.reports(1)[:10])
    wait_until(lambda: len(site.tags(1)) == 10)
    os.kill(old.pid, signal.SIGSTOP)
    site.wait_for_leader(not_this=leader)
    for _ in range(2):  # twice: what was dealt to the paused one comes to the other
        publish(site.broker.url, site.reports())
    request = Request(digest8(site.manifest), RequestKind.FORGET, b"8 bytes.").encode()
    for _ in range(2):
        publish(site.broker.url, [(site.topics.request("device-3"), request)])
    gone = receipt_tag(site.manifest, 1, "device-3")
    wait_until(lambda: gone not in site.tags(1))
    site.wait_until_sealed()
    before, pages = snapshot(site.store, 2), site.tags(1)
    rounds = before[site.manifest.campaign]
    os.kill(old.pid, signal.SIGCONT)
    old.wait_for("this is worker", times=2)
    wait_until(lambda: site.worker_of(old) in {w.number for w in site.live() if w.drained})
    after = snapshot(site.store, 2)[site.manifest.campaign]
    assert after["results"] == rounds["results"]
    assert after["rounds"][0]["tallies"] == rounds["rounds"][0]["tallies"]
    assert site.tags(1) == pages
    assert gone not in pages
    assert set(site.counts()) <= {0, 1}

"""What the broker took in time is counted, whatever stands still at the deadline (F1, A3).

The collector's clock is a file, so a deadline passes when the test sets it.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from collector.health import examine
from protocol_spec import Request, RequestKind, digest8
from protocol_spec.topics import marker
from testbed.brokers import Broker, publish
from tests.support.collector_processes import (
    TIMING,
    Collection,
    Launcher,
    assert_each_once,
    facts,
    wait_until_open,
)
from tests.support.network import Proxy
from tests.support.processes import wait_until

DEVICES = 40


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.shared(tmp_path / "data", DEVICES)
    made.set_clock(made.manifest.rounds.opens(0) + 1)
    return made


def test_a_network_that_stands_still_over_the_deadline(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """All reports were in time."""
    with Proxy(broker.port) as proxy:
        run = launcher.start(collection.options(proxy, clock=str(collection.clock)))
        wait_until_open(collection, broker.port)
        proxy.stall()
        publish(broker.url, collection.reports())
        collection.pass_deadline()
        still = threading.Event()
        still.wait(12 * TIMING.upkeep_every_seconds)
        assert not collection.look().sealed
        proxy.flow()
        collection.wait_until_sealed()
        run.kill()
    assert_each_once(collection.look(), DEVICES)


def test_a_device_that_reports_and_withdraws_in_turn(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """A3: it does not delay the sealing; nor do thousands of requests at once, again and again, nor
    markers that it makes up."""
    run = launcher.start(collection.options(broker, clock=str(collection.clock)))
    wait_until_open(collection, broker.port)
    request = Request(digest8(collection.manifest), RequestKind.FORGET, b"8 bytes.").encode()
    nuisance = [
        collection.report(0),
        (collection.topics.request("device-0"), request),
        (marker(collection.namespace), bytes(16)),
        *[(collection.topics.request("device-0"), request)] * 2_500,
    ]
    done = threading.Event()

    def pester() -> None:
        while not done.is_set():
            publish(broker.url, nuisance)

    publish(broker.url, collection.reports()[1:])
    collection.wait_for(DEVICES - 1)
    pestering = threading.Thread(target=pester)
    pestering.start()
    try:
        wait_until(lambda: sum(collection.store.requests().values()) > 2_500)
        collection.pass_deadline()
        collection.wait_until_sealed()
    finally:
        done.set()
        pestering.join(60)
    assert run.said("without proof") == 0
    run.kill()
    assert collection.look().counts[1:] == [1] * (DEVICES - 1)


def test_a_clock_that_is_set_ahead(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """F8: it is reported, and nothing is sealed by it; set back, all goes on as before."""
    options = collection.options(broker, clock=str(collection.clock), jump_seconds=60.0)
    run = launcher.start(options)
    wait_until_open(collection, broker.port)
    collection.pass_deadline()
    run.wait_for("the clock was set ahead")
    wait_until(lambda: "set ahead" in facts("health", "--data-dir", collection.data)["clock"])
    wait_until(
        lambda: (
            "clock"
            in facts("status", "--data-dir", collection.data)["campaigns"][0]["waiting"]["why"]
        )
    )  # which its next beat says
    collection.set_clock(collection.manifest.rounds.opens(0) + 2)
    publish(broker.url, collection.reports())
    collection.wait_for(DEVICES)
    wait_until(lambda: examine(collection.data).finding == "connected and counting")
    assert_each_once(collection.look(), DEVICES)
    assert not collection.look().sealed
    run.kill()

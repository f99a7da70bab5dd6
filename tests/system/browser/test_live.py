"""An open page updates itself: reports, sealed rounds, a server that was away."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.settings import Address
from testbed.brokers import Nats, publish
from testbed.processes import free_port
from tests.support.browser import Browser
from tests.support.collector import candidate
from tests.support.collector_processes import (
    Collection,
    CollectorProcess,
    wait_until_open,
)
from tests.support.command_line import facts
from tests.support.pages import PROMPT, serving

pytestmark = pytest.mark.slow

HOUR, PAST, NOW = 3600, 0, 1
SAME = "return window.same === true"
CUT_OFF = """
window.whole = window.fetch;
window.missed = 0;
window.fetch = () => { window.missed = changed; return Promise.reject(new TypeError("cut off")); };
return changed;
"""


def opened(place: Path) -> Collection:
    """Three devices; round 0 has ended and is within its grace, round 1 is open."""
    return Collection.opened(place / "data", 3, first=int(time.time()) - HOUR - 5, count=3)


def stay(browser: Browser, url: str) -> None:
    """Open a page and mark it: a page that is loaded again has no mark."""
    browser.read(url)
    browser.run("window.same = true")


def count(collection: Collection, *devices: int) -> None:
    """Reports of the open round, as a collector writes them."""
    store = open_store(collection.data)
    store.commit([candidate(collection.campaign(), d, NOW, body=1 << d) for d in devices], [])
    store.close()


def received(browser: Browser, number: int) -> str:
    return browser.text(f'#rounds tr[data-round="{number}"] [data-received]')


def test_reports_and_a_sealed_round_appear(browser: Browser, tmp_path: Path) -> None:
    """A real broker, a real collector, and the page that it starts itself."""
    collection, page = opened(tmp_path), f"127.0.0.1:{free_port()}"
    url = f"http://{page}/campaigns/{collection.manifest.campaign}"
    flags = ("--listen", page, "--broker")
    with Nats(tmp_path / "nats") as nats, CollectorProcess(collection.data, *flags, nats.url):
        wait_until_open(collection, nats.port)
        stay(browser, url)
        assert (received(browser, PAST), received(browser, NOW)) == ("0", "0")
        publish(nats.url, [*collection.reports(PAST), collection.report(0, NOW)])
        browser.until(lambda: (received(browser, PAST), received(browser, NOW)) == ("3", "1"))
        publish(nats.url, [collection.report(1, NOW)])
        browser.until(lambda: received(browser, NOW) == "2")
        assert browser.text("#health-text") == "connected and counting"
        assert facts("seal", "--data-dir", collection.data, "--early")["sealed"] == [PAST]
        browser.until(lambda: browser.text('#rounds tr[data-round="0"] .tag') == "sealed")
        assert browser.run(SAME)
        assert browser.complaints() == []


def test_a_tab_that_nobody_sees_holds_no_connection(browser: Browser, tmp_path: Path) -> None:
    """There is room for one reader, the newest. A tab that is seen takes its place back after three
    seconds; from one that is not seen, another reader keeps it."""
    collection = opened(tmp_path)
    with serving(collection.data, limits=replace(PROMPT, readers=1)) as site:
        stay(browser, f"{site.url}/campaigns/{collection.manifest.campaign}")
        count(collection, 0)
        browser.until(lambda: received(browser, NOW) == "1")
        assert not site.stream_outlives(60)
        tab = browser.driver.current_window_handle
        browser.driver.switch_to.new_window("tab")
        browser.until(lambda: site.stream_outlives(4.5))
        count(collection, 1)
        browser.driver.close()
        browser.driver.switch_to.window(tab)
        browser.until(lambda: received(browser, NOW) == "2")
        count(collection, 2)
        browser.until(lambda: received(browser, NOW) == "3")
        assert browser.run(SAME)


def test_a_server_that_was_away_or_an_answer_cut_off_is_asked_again(
    browser: Browser, tmp_path: Path
) -> None:
    """Though nothing else changes: without that the page would show old numbers until it does."""
    collection, address = opened(tmp_path), Address("127.0.0.1", free_port())
    with serving(collection.data, address) as site:
        stay(browser, f"{site.url}/campaigns/{collection.manifest.campaign}")
        assert received(browser, NOW) == "0"
    count(collection, 0, 1)
    assert received(browser, NOW) == "0"
    with serving(collection.data, address):
        browser.until(lambda: received(browser, NOW) == "2")
        browser.until(lambda: browser.run("return changed > 0 && !busy && !stale"))
        before = browser.run(CUT_OFF)
        count(collection, 2)
        browser.until(lambda: browser.run("return missed") > before)
        browser.run("window.fetch = window.whole")
        browser.until(lambda: received(browser, NOW) == "3")
        assert browser.run(SAME)

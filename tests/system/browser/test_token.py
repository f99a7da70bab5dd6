"""Where other machines can connect, the link with the token opens the page; nothing else does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from collector.settings import Address
from tests.support.browser.chromium import Browser
from tests.support.browser.served import ServedSample
from tests.support.site import serving

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-tests"  # noqa: S105 - of nobody else
EVERYWHERE = Address("0.0.0.0", 0)  # noqa: S104 - what is tested


def own_address() -> str:
    """An address of this machine that is not its loopback; nothing is sent to find it."""
    with closing(socket.socket(type=socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its loopback")
        return str(probe.getsockname()[0])


@pytest.fixture
def outside(served: ServedSample) -> Iterator[str]:
    """The sample's page as another machine sees it."""
    host = own_address()
    with serving(served.sample.data, EVERYWHERE, TOKEN) as site:
        yield f"http://{host}:{site.port}"


def test_without_it_nothing_is_shown(browser: Browser, outside: str) -> None:
    browser.driver.delete_all_cookies()
    browser.open(f"{outside}/")
    assert browser.text("#sentence").startswith("This page needs its access token.")
    assert browser.parts("#campaigns") == []


def test_the_link_opens_every_page_and_leaves_the_address(
    browser: Browser, served: ServedSample, outside: str
) -> None:
    browser.open(f"{outside}/?token={TOKEN}")
    browser.until(lambda: browser.part("#campaigns"))
    assert browser.driver.current_url == f"{outside}/"
    browser.part(f'li[data-campaign="{served.sample.simulation}"] a').click()
    browser.until(lambda: browser.part("#rounds"))
    browser.read(f"{outside}/campaigns/{served.sample.simulation}/attributes/heating")
    assert "pooled" in browser.chart(), "charts and events ask with the token too"
    assert TOKEN not in browser.run("return document.cookie")

"""A campaign's page shows the link by which owners join, and its QR code."""

from __future__ import annotations

import json
import re

import pytest

from collector.opening import ADDRESS_FILE
from tests.support.page_data import Own
from tests.support.qr import read_code
from tests.support.site import serving

ADDRESS = "mqtts://broker.example:8883/allomfree"


def squares_of(page: str) -> list[list[int]]:
    """The dark squares of the one code on a page."""
    (size, path), *others = re.findall(r'viewBox="0 0 (\d+) \1".*?fill="#000" d="(.*?)"', page)
    assert others == []
    squares = [[0] * int(size) for _ in range(int(size))]
    for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", path):
        squares[int(y)][int(x)] = 1
    return squares


def test_the_code_is_the_link_with_the_whole_digest(own: Own) -> None:
    (own.data / ADDRESS_FILE).write_text(ADDRESS)
    campaign = own.campaign
    with serving(own.data) as site:
        page = site.get(f"/campaigns/{campaign.name}").text
        facts = json.loads(site.get(f"/campaigns/{campaign.name}.json").body)
    link = f"{ADDRESS}/{campaign.manifest.full_name}"
    assert campaign.manifest.digest.hex() in link.replace("-", "")
    assert f"allomfree-edge join {link}" in page
    assert read_code(squares_of(page)) == link
    assert facts["join"] == link


@pytest.mark.parametrize("address", [None, "", "mqtt://127.0.0.1:1883/allomfree", "<script>"])
def test_without_an_address_for_others_there_is_none(own: Own, address: str | None) -> None:
    if address is not None:
        (own.data / ADDRESS_FILE).write_text(address)
    with serving(own.data) as site:
        page = site.get(f"/campaigns/{own.campaign.name}").text
        facts = json.loads(site.get(f"/campaigns/{own.campaign.name}.json").body)
    assert "join-title" not in page
    assert facts["join"] is None


def test_a_closed_campaign_shows_none(own: Own) -> None:
    (own.data / ADDRESS_FILE).write_text(ADDRESS)
    own.store.close_campaign(own.campaign, 1)
    with serving(own.data) as site:
        assert "join-title" not in site.get(f"/campaigns/{own.campaign.name}").text

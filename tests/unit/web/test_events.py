"""Pages hear of new reports while they arrive, and the server never waits for a reader."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from collector.records import Campaign
from collector.store import Store
from collector.store.sqlite import SqliteStore
from collector.web.live import Limits
from tests.support.collector_fakes import candidate, seal
from tests.support.edge_processes.processes import wait_until
from tests.support.page_data import Own
from tests.support.site import Site, serving

Next = Callable[[], dict[str, Any]]


@contextmanager
def stream(site: Site, path: str) -> Iterator[Next]:
    """Events of one path, each as its facts."""
    connection = site.connect()
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        yield lambda: _event(response)
    finally:
        connection.close()


def _event(response: HTTPResponse) -> dict[str, Any]:
    for line in response:
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return found
    raise EOFError


def _ended(following: Next) -> bool:
    try:
        following()
    except EOFError:
        return True
    return False


def test_a_campaigns_events_follow_its_reports(own: Own) -> None:
    path = f"/campaigns/{own.campaign.name}/events"
    with serving(own.data) as site, stream(site, path) as following:
        first = following()
        assert (first["received"], first["last_sealed"]) == (42, 1)
        assert first["filling"][0]["reports"] == {"fuel": 8, "town": 0, "colour": 0}
        own.store.commit([candidate(own.campaign, 99, 2)], [])
        assert following()["filling"][0]["reports"]["fuel"] == 9
        seal(own.store, own.campaign, 2)
        assert following()["last_sealed"] == 2


def test_everything_together(own: Own) -> None:
    with serving(own.data) as site, stream(site, "/events") as following:
        assert following()["received"] == 42
        own.store.commit([candidate(own.campaign, 99, 2)], [])
        assert following()["received"] == 43


def test_events_hold_no_histogram(site: Site, campaign: Campaign) -> None:
    with stream(site, f"/campaigns/{campaign.name}/events") as following:
        facts = following()
    assert facts.keys() == {"healthy", "service", "received", "last_sealed", "filling"}


@pytest.mark.parametrize(
    "limits", [Limits(event_seconds=0.05, readers=3), Limits(event_seconds=0.05, readers_of_one=3)]
)
def test_a_reader_beyond_the_limit_takes_the_oldest_ones_place(
    data: Path, campaign: Campaign, limits: Limits
) -> None:
    """A9: whoever opens all the streams keeps the owner out of none."""
    with serving(data, limits=limits) as site, ExitStack() as stack:
        followers = [stack.enter_context(stream(site, "/events")) for _ in range(3)]
        for following in followers:
            following()
        owner = stack.enter_context(stream(site, "/events"))
        assert owner()["received"] == 42
        assert _ended(followers[0])
        assert site.get("/").status == 200


def test_a_silent_stream_shows_that_it_is_alive(data: Path, campaign: Campaign) -> None:
    with serving(data, limits=Limits(alive_seconds=0.05)) as site:
        connection = site.connect()
        connection.request("GET", "/campaigns/nosuch/events")
        response = connection.getresponse()
        assert [response.readline() for _ in range(3)][2] == b": still here\n"
        connection.close()


def test_the_server_stops_at_once_with_readers_attached(data: Path, campaign: Campaign) -> None:
    with ExitStack() as stack:
        with serving(data) as site:
            followers = [stack.enter_context(stream(site, "/events")) for _ in range(5)]
            for following in followers:
                following()
        assert all(_ended(following) for following in followers)  # `serving` has seen it stop


def test_readers_of_an_unknown_campaign_disturb_nobody(own: Own) -> None:
    with serving(own.data) as site, ExitStack() as stack:
        stack.enter_context(stream(site, "/campaigns/nosuch/events"))
        following = stack.enter_context(stream(site, "/events"))
        assert following()["received"] == 42
        own.store.commit([candidate(own.campaign, 99, 2)], [])
        assert following()["received"] == 43


def test_a_database_that_failed_is_opened_anew(data: Path, campaign: Campaign) -> None:
    opened: list[Store] = []
    closed: list[Store] = []

    class Failing(SqliteStore):
        def received(self) -> int:
            if self is opened[0]:
                raise sqlite3.OperationalError("disk I/O error")
            return super().received()

        def close(self) -> None:
            closed.append(self)
            super().close()

    def opening(directory: Path) -> Store:
        opened.append(Failing(directory / "collector.db", read_only=True))
        return opened[-1]

    with serving(data, open_store=opening) as site, stream(site, "/events") as following:
        wait_until(lambda: len(opened) == 2)
        assert following()["received"] == 42
    assert (len(opened), closed) == (2, opened[:1])


@pytest.mark.parametrize("path", ["/events", "/campaigns/nosuch/events"])
def test_events_are_not_stored(site: Site, path: str) -> None:
    connection = site.connect()
    connection.request("GET", path)
    assert connection.getresponse().getheader("cache-control") == "no-store"
    connection.close()

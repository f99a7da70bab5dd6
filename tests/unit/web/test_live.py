"""Ten readers cost as much as one, and pages get events while reports arrive."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from collector.records import Campaign
from collector.store import Store
from collector.store.sqlite import SqliteStore
from collector.web.live import MOST_ANSWERS, MOST_BYTES, Cache, Limits
from tests.support.collector import candidate, seal
from tests.support.pages import Own, Site, serving
from tests.support.processes import wait_until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def nothing(_answer: int) -> int:
    return 0


def test_readers_at_the_same_time_wait_for_one_answer() -> None:
    made: list[int] = []
    release = threading.Event()

    def make() -> int:
        made.append(1)
        release.wait(20)
        return 7

    async def ten() -> list[tuple[int, float]]:
        cache: Cache[int] = Cache(nothing, Clock())
        readers = [asyncio.create_task(cache.get("page", make)) for _ in range(10)]
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*readers)

    assert asyncio.run(ten()) == [(7, 0.0)] * 10
    assert len(made) == 1


@pytest.mark.parametrize(
    ("times", "waited", "spent", "expected"),
    [
        ((0.0, 0.5, 0.999, 1.0, 1.5, 2.0), 0.0, 0.0, [0, 0, 0, 1, 1, 2]),
        # Reading one address without end costs a tenth of a processor, not all of it.
        ((0.0, 0.6, 5.4, 5.5, 6.0), 0.0, 0.5, [0, 0, 0, 1, 1]),
        # On a busy machine a cheap answer takes seconds: no reason to show old numbers for minutes.
        ((0.0, 9.9, 10.0), 4.99, 0.01, [0, 0, 1]),
        ((9e9, 5.0, 5.5), 0.0, 0.0, [0, 1, 1]),
    ],
    ids=["a second", "longer if expensive", "not if it only waited", "clock set back"],
)
def test_how_long_an_answer_is_kept(
    times: tuple[float, ...], waited: float, spent: float, expected: list[int]
) -> None:
    """If making an answer waits and keeps a processor for this many seconds."""
    clock, processor, numbers = Clock(), Clock(), iter(range(9))

    def make() -> int:
        clock.now += waited + spent
        processor.now += spent
        return next(numbers)

    async def read() -> list[int]:
        cache: Cache[int] = Cache(nothing, clock, processor)
        seen = []
        for now in times:
            clock.now = now
            seen.append((await cache.get("page", make))[0])
        return seen

    assert asyncio.run(read()) == expected


def test_a_failure_is_not_kept_and_neither_are_too_many_answers() -> None:
    made = []

    def make(i: int) -> int:
        made.append(i)
        return i

    async def read() -> int:
        cache: Cache[int] = Cache(nothing, Clock())
        with pytest.raises(ZeroDivisionError):
            await cache.get("page", lambda: 1 // 0)
        for i in (*range(MOST_ANSWERS + 1), MOST_ANSWERS, 0):
            await cache.get(str(i), partial(make, i))
        return (await cache.get("page", lambda: 7))[0]

    assert asyncio.run(read()) == 7
    assert made == [*range(MOST_ANSWERS + 1), 0]


class Answer:
    """An answer that weighs something."""

    def __init__(self, size: int) -> None:
        self.size = size


THIRD = MOST_BYTES // 3


@pytest.mark.parametrize(
    ("sizes", "pause", "expected"),
    [
        ([THIRD] * 3, 0.0, [0, 1, 2]),
        ([THIRD] * 4, 0.0, [1, 2, 3]),
        ([1, 1, MOST_BYTES], 0.0, [2]),
        ([1, MOST_BYTES + 1, 1], 0.0, [0, 2]),  # too large: given, and not kept
        ([1, 1, 1, 1], 0.6, [2, 3]),  # out of date: dropped by whatever is read next
    ],
)
def test_which_answers_are_kept(sizes: list[int], pause: float, expected: list[int]) -> None:
    clock, made = Clock(), []
    gc.disable()  # so that all that is made here is young, and no search needs to look further

    async def read() -> list[int]:
        cache: Cache[Answer] = Cache(lambda answer: answer.size, clock)
        for i, size in enumerate(sizes):
            clock.now += pause
            made.append(weakref.ref((await cache.get(str(i), partial(Answer, size)))[0]))
        gc.collect(0)
        return [i for i, answer in enumerate(made) if answer() is not None]

    try:
        assert asyncio.run(read()) == expected
    finally:
        gc.enable()


def test_a_page_is_made_again_after_its_time(own: Own) -> None:
    path = f"{own.fuel}/rounds/2"
    with serving(own.data) as site:
        assert "At least 8 reports" in site.get(path).text
        assert site.get(f"{path}?x=1").text == site.get(f"{path}?y=2").text, "unknown parameters"
        own.store.commit([candidate(own.campaign, d, 2) for d in range(96, 100)], [])
        while "At least 12 reports" not in (page := site.get(path).text):
            assert "At least 8 reports" in page


# --- Events: pages learn of new reports while they arrive, and the server waits for no reader -----

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
        assert response.getheader("cache-control") == "no-store"
        yield lambda: _event(response)
    finally:
        connection.close()


def _event(response: HTTPResponse) -> dict[str, Any]:
    """The next one, or nothing at the end of the stream."""
    for line in response:
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return found
    return {}


def test_a_campaigns_events_follow_its_reports(own: Own) -> None:
    path = f"/campaigns/{own.campaign.name}/events"
    with serving(own.data) as site, stream(site, path) as following, ExitStack() as stack:
        stack.enter_context(stream(site, "/campaigns/nosuch/events"))  # disturbs nobody
        first = following()
        assert first.keys() == {"healthy", "service", "received", "last_sealed", "filling"}
        assert (first["received"], first["last_sealed"]) == (42, 1)
        assert first["filling"][0]["reports"] == {"fuel": 8, "town": 0, "colour": 0}
        own.store.commit([candidate(own.campaign, 99, 2)], [])
        assert following()["filling"][0]["reports"]["fuel"] == 8, "in steps of min_reports (P1)"
        seal(own.store, own.campaign, 2)
        assert following()["last_sealed"] == 2


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
        assert followers[0]() == {}
        assert site.get("/").status == 200


def test_the_server_stops_at_once_with_readers_attached(data: Path, campaign: Campaign) -> None:
    with ExitStack() as stack:
        with serving(data) as site:
            followers = [stack.enter_context(stream(site, "/events")) for _ in range(5)]
            for following in followers:
                following()
        assert [following() for following in followers] == [{}] * 5  # `serving` has seen it stop


def test_a_database_that_failed_is_opened_again(data: Path, campaign: Campaign) -> None:
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

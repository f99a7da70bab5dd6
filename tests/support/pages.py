"""The collector's page, really served over HTTP, and the results and data that it shows."""

from __future__ import annotations

import html
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from collector.data_dir import read_store
from collector.records import POOLED, Campaign, Refusal, RoundSum, Tally
from collector.rounds.results import window_result
from collector.settings import Address
from collector.store import Sealing, Store
from collector.web.app import Pages
from collector.web.live import Limits
from collector.web.process import bound, listening
from collector.web.server import make_server
from protocol_spec import Manifest, Mechanism, Outcome
from tests.support.campaigns import second_manifest
from tests.support.collector import COLOUR, FIRST, candidate, seal, three_questions


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass(frozen=True, slots=True)
class Site:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=30)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> Reply:
        connection = self.connect()
        try:
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def status(self, path: str) -> int:
        """Of an answer whose body may never end."""
        connection = self.connect()
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def stream_outlives(self, seconds: float) -> bool:
        """Whether a new stream of events is still open after so long."""
        connection, until = self.connect(), time.monotonic() + seconds
        try:
            connection.request("GET", "/events")
            response = connection.getresponse()
            while (left := until - time.monotonic()) > 0:
                connection.sock.settimeout(left)
                if not response.readline():
                    return False
        except TimeoutError:
            pass
        finally:
            connection.close()
        return True


ANY_PORT = Address("127.0.0.1", 0)
# As fresh as it can be: a test waits for what changed, not for the next second.
PROMPT = Limits(cache_seconds=0.05, event_seconds=0.05)


@contextmanager
def serving(
    directory: Path,
    address: Address = ANY_PORT,
    token: str | None = None,
    *,
    limits: Limits = PROMPT,
    open_store: Callable[[Path], Store] = read_store,
) -> Iterator[Site]:
    """Serve while the context lasts; the end is as quick as the operator's."""
    sock = listening(address)
    server = make_server(Pages(directory, limits, open_store), address, token)
    thread = threading.Thread(target=server.run, args=([sock],), name="page")
    thread.start()
    try:
        yield Site(bound(address, sock).port)
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()
        assert not thread.is_alive()


def words(page: str) -> str:
    """A page's text as a person reads it."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


# --- data: two sealed rounds, one that fills, and refused messages --------------------------------


ENOUGH = 4


def filled(store: Store) -> Campaign:
    """Two rounds sealed and one that fills; the third attribute's are too few from round 1 on."""
    made = store.open_campaign(three_questions(min_reports=ENOUGH), FIRST)
    for number in range(3):
        fuel = [candidate(made, d, number, body=d % 4) for d in range(10 - number)]
        colours = [candidate(made, d, number, COLOUR, body=d) for d in range(20, 26 - 3 * number)]
        refused = [Refusal(made.id, number, Outcome.BAD_LENGTH)] * 2
        store.commit(fuel + colours, refused)
        if number < 2:
            seal(store, made, number)
    return made


def pages_of(campaign: Campaign) -> str:
    """Where the first attribute's pages begin."""
    return f"/campaigns/{campaign.name}/attributes/fuel"


@dataclass(frozen=True, slots=True)
class Own:
    """The same data for one test alone, which may change it."""

    data: Path
    store: Store
    campaign: Campaign

    @property
    def fuel(self) -> str:
        return pages_of(self.campaign)


# --- results, made from counts that come out as expected, for every mechanism ---------------------


ROOMS = """[[attributes]]
name = "room"
question = "How warm is your living room?"
edges = [-inf, 16, 18, 20, 22, 24, inf]
low = 10
high = 30
unit = "°C"
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["gas", "heat pump", "wood", "oil", "other"]
otherwise = "other"
"""
ROOM, FUEL = 0, 1
SHARES = {
    ROOM: (0.05, 0.15, 0.3, 0.3, 0.15, 0.05),
    FUEL: (0.40, 0.25, 0.2, 0.1, 0.05),
}


def rooms(reporting: str, *, min_reports: int = 50, first: int = FIRST) -> Manifest:
    """A numeric attribute and one with names, with any mechanism."""
    return second_manifest(
        slug="rooms", reporting=reporting, eps_inf=4.0, eps_1=1.5, min_reports=min_reports,
        first=first, count=60, attributes=ROOMS,
    )  # fmt: skip


def expected_tally(mechanism: Mechanism, n: int, shares: tuple[float, ...]) -> Tally:
    """Counts as they are on average, to the next whole report; every level is equally frequent."""
    levels = mechanism.channels
    rows = []
    for channel in levels:
        p1, q1, p2, q2 = map(float, channel.exact)
        gap, qs = (p1 - q1) * (p2 - q2), q1 * p2 + (1 - q1) * q2
        counts = np.round(n // len(levels) * (qs + gap * np.array(shares))).astype(np.int64)
        rows.append(counts if len(levels) == 1 else np.insert(counts, 0, n // len(levels)))
    return Tally(n // len(levels) * len(levels), np.concatenate(rows))


def store_windows(store: Store, campaign: Campaign) -> None:
    """Six sealed rounds: two windows of two and three rounds, their total, and one that fills."""

    def write(sealing: Sealing, number: int, first: int, last: int, n: int) -> None:
        results = {}
        for index in (ROOM, FUEL):
            tally = expected_tally(campaign.manifest.mechanisms[index], n, SHARES[index])
            rounds = RoundSum(first, last, last - first + 1, tally)
            results[index] = window_result(campaign, index, rounds, ([1], [n]), {})
        sealing.write(results, number)

    windows = ((0, 0, 30), (0, 1, 60), (2, 2, 20), (2, 3, 40), (2, 4, 70), (5, 5, 10))
    for number, window in enumerate(windows):
        with store.sealing(campaign, number, campaign.manifest.rounds.deadline(number)) as sealing:
            assert sealing is not None
            write(sealing, number, *window)
            write(sealing, POOLED, 0, 4, 130)

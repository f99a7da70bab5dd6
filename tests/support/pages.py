"""The collector's page, really served over HTTP, and the results and data that it shows."""

from __future__ import annotations

import html
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from collector.data_dir import read_store
from collector.records import POOLED, Campaign, Refusal
from collector.settings import Address
from collector.store import Store
from collector.web.app import Pages
from collector.web.live import Limits
from collector.web.process import bound, listening
from collector.web.server import make_server
from protocol_spec import (
    RESULT_QUANTILES,
    RESULT_SERIES,
    Attribute,
    HalfWidths,
    Manifest,
    Mechanism,
    Numbers,
    Outcome,
    Result,
    ResultQuantile,
)
from protocol_spec.estimation import (
    Channel,
    Estimate,
    binning_bias,
    cdf,
    estimate,
    estimate_levels,
    estimate_pooled,
    mean,
    midpoints,
    quantile,
    smallest_difference,
)
from tests.support.campaigns import read_manifest
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


MANIFEST = """
format = 1
slug = "rooms"
title = "Warm rooms"
purpose = "Testing"
owner = "The tests"
contact = "tests@example.org"
reporting = "{reporting}"
{budget}
min_reports = {min_reports}
[rounds]
first = {first}
period = 3600
count = 60
grace = 3600
[[attributes]]
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


def rooms(reporting: str, *, min_reports: int = 50, first: int = 1_800_000_000) -> Manifest:
    """A numeric question and one with names, in one of the ways of reporting."""
    budget = "eps_inf = 4.0" if reporting == "once" else "eps_inf = 4.0\neps_1 = 1.5"
    text = MANIFEST.format(reporting=reporting, budget=budget, min_reports=min_reports, first=first)
    return read_manifest(text)


def counts_of(channel: Channel, n: int, shares: Sequence[float]) -> np.ndarray[Any, Any]:
    """As they are on average, to the next whole report."""
    p1, q1, p2, q2 = map(float, channel.exact)
    gap, qs = (p1 - q1) * (p2 - q2), q1 * p2 + (1 - q1) * q2
    return np.round(n * (qs + gap * np.array(shares))).astype(np.int64)


def round_estimate(way: Mechanism, n: int, shares: Sequence[float]) -> tuple[Estimate, Any]:
    """One round, or a window of answers; of levels, all of them equally often."""
    if way.reporting == "nested":
        each = [n // len(way.channels)] * len(way.channels)
        table = np.stack([counts_of(c, m, shares) for c, m in zip(way.channels, each)])
        return estimate_levels(table, each, way.channels), table.sum(axis=0)
    counts = counts_of(way.channels[0], n, shares)
    return estimate(counts, n, way.channels[0]), counts


def pooled_estimate(
    way: Mechanism, participation: tuple[Sequence[int], Sequence[int]], shares: Sequence[float]
) -> tuple[Estimate, Any]:
    """Rounds of the same devices, which reported so often."""
    reports, devices = participation
    counts = counts_of(way.channels[0], int(np.dot(reports, devices)), shares)
    made = estimate_pooled(counts, reports, devices, way.channels[0], weights="reports")
    return made, counts


def made_result(
    manifest: Manifest,
    index: int,
    estimated: Estimate,
    counts: Any,
    *,
    n: int,
    devices: int | None = None,
    rounds: tuple[int, int] = (0, 0),
    pooled: bool = False,
) -> Result:
    """The message, as a collector makes it."""
    series = (
        *(estimated.raw, estimated.projected, estimated.privacy_error, estimated.sampling_error),
        *estimated.interval(),
        *estimated.interval(simultaneous=True),
    )
    names = ("raw", "projected", "privacy_error", "sampling_error")
    named = dict(zip((*names, "low", "high", "low_all", "high_all"), series))
    first, last = rounds
    new: dict[str, Any] = {
        "reporting": manifest.reporting,
        "first": first,
        "last": last,
        "n_eff": estimated.n_eff,
        "difference": HalfWidths(*smallest_difference(estimated)),
        "numbers": _numbers(manifest.attributes[index], estimated),
    }
    stated: dict[str, Any] = {name: tuple(row.tolist()) for name, row in named.items()}
    stated |= new
    return Result(
        digest=manifest.digest,
        attribute=manifest.attributes[index].name,
        round=None if pooled or first != last else first,
        rounds=last - first + 1,
        protocol=manifest.mechanisms[index].protocol,
        n=n,
        devices=devices or n,
        min_reports=manifest.min_reports,
        confidence=0.95,
        device_bound=0.01,
        counts=tuple(counts.tolist()),
        outcomes={},
        **stated,
    )


def _numbers(attribute: Attribute, estimated: Estimate) -> Numbers | None:
    if attribute.edges is None or attribute.finite_edges is None:
        return None
    made, band = cdf(estimated), cdf(estimated).band()
    found = mean(estimated, midpoints(attribute.finite_edges))
    rows = [quantile(estimated, attribute.edges, tau) for tau in RESULT_QUANTILES]
    low, high = found.interval()
    at, lowest, highest = (tuple(np.clip(each, 0.0, 1.0).tolist()) for each in (made.values, *band))
    return Numbers(
        *(found.value, low, high, binning_bias(attribute.finite_edges)),
        *(at, lowest, highest),
        tuple(
            ResultQuantile(
                q.tau, q.value, *(x if math.isfinite(x) else None for x in (q.low, q.high))
            )
            for q in rows
        ),
    )


def withheld(manifest: Manifest, index: int, n: int, rounds: tuple[int, int]) -> Result:
    """Too few reports so far."""
    first, last = rounds
    nothing: dict[str, Any] = dict.fromkeys(("counts", *RESULT_SERIES), ())
    return Result(
        digest=manifest.digest,
        attribute=manifest.attributes[index].name,
        reporting=manifest.reporting,
        round=first if first == last else None,
        first=first,
        last=last,
        rounds=last - first + 1,
        protocol=manifest.mechanisms[index].protocol,
        n=n,
        devices=n,
        n_eff=float(n),
        min_reports=manifest.min_reports,
        confidence=0.95,
        device_bound=0.0,
        outcomes={},
        **nothing,
    )


def windows(manifest: Manifest) -> list[list[Result]]:
    """What sealing six rounds stores: two windows of two and three rounds, and one that fills."""
    results = []
    for first, last, n in ((0, 0, 30), (0, 1, 60), (2, 2, 20), (2, 3, 40), (2, 4, 70), (5, 5, 10)):
        row = []
        for index in (ROOM, FUEL):
            if n < manifest.min_reports:
                row.append(withheld(manifest, index, n, (first, last)))
                continue
            made, counts = round_estimate(manifest.mechanisms[index], n, SHARES[index])
            row.append(made_result(manifest, index, made, counts, n=n, rounds=(first, last)))
        results.append(row)
    return results


def store_windows(store: Store, campaign: Campaign) -> None:
    """Six sealed rounds of one round for life, and the pooled result of the two windows."""
    manifest = campaign.manifest
    pooled = []
    for index in (ROOM, FUEL):
        made, counts = round_estimate(manifest.mechanisms[index], 130, SHARES[index])
        pooled.append(made_result(manifest, index, made, counts, n=130, rounds=(0, 4), pooled=True))
    for number, results in enumerate(windows(manifest)):
        with store.sealing(campaign, number, manifest.rounds.deadline(number)) as sealing:
            assert sealing is not None
            sealing.write(results, number)
            sealing.write(pooled, POOLED)

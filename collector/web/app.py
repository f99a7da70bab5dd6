"""Which address shows what. Every page is also available as `.json`, results also as `.csv`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from collector import charts
from collector.data_dir import read_store
from collector.errors import CollectorError, UnknownCampaign
from collector.health import examine
from collector.planning import Plan, plan_budget, plan_manifest
from collector.records import Campaign
from collector.results import facts
from collector.results.estimates import attribute_of, compare, most_interesting
from collector.results.facts import known_truth, latest_results, pooled_result
from collector.results.tables import content
from collector.results.trends import comparisons, period_of, trend_facts
from collector.results.words import Facts
from collector.store import Store
from collector.web.live import ALL, LIMITS, Cache, Hub, Limits, origin
from collector.web.metrics import exposition, registry
from collector.web.render import (
    ASSETS,
    Answer,
    as_json,
    asset,
    figure,
    page,
    refusal,
)
from protocol_spec import LONGITUDINAL, Attribute, ParameterError, Reporting, Result
from protocol_spec.mechanisms import DEFAULT_MECHANISM, MECHANISMS, Budget

SHOWN: Final = 60
MOST_SHOWN: Final = 1000
HOME_BARS: Final = 5
CARD_BARS: Final = 8
NO_FIT: Final = "none"
SPARK_ROUNDS: Final = 60
SPARK_ROWS: Final = 5_000  # of all rounds in a sparkline: with many values it has fewer rounds
AUTHORISED: Final = "allomfree.authorised"  # in the scope: whether the request may read everything

Query = Mapping[str, str]
Make = Callable[["Pages", dict[str, str], Query, str], Answer]

log = logging.getLogger("allomfree.page")


class _Name(Convertor[str]):
    regex = "[A-Za-z0-9_-]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _FileFormat(_Name):
    regex = r"(?:\.json)?"

    def convert(self, value: str) -> str:
        return value.removeprefix(".") or "html"


class _RowFormat(_FileFormat):
    regex = r"(?:\.json|\.csv)?"


class _Asset(_Name):
    regex = "|".join(name.replace(".", r"\.") for name in ASSETS)


register_url_convertor("name", _Name())
register_url_convertor("file_format", _FileFormat())
register_url_convertor("row_format", _RowFormat())
register_url_convertor("asset", _Asset())


class Pages:
    """The application's state: where the data is, recent answers, and who listens for events."""

    def __init__(
        self,
        directory: Path,
        limits: Limits = LIMITS,
        open_store: Callable[[Path], Store] = read_store,
        broker_dir: Path | None = None,
    ) -> None:
        self.directory = directory
        self.limits = limits
        self.hub = Hub(directory, limits, open_store)
        self._broker_dir = broker_dir
        self._open_store = open_store
        self._cache: Cache[Answer] = Cache(
            lambda answer: len(answer.body), keep_seconds=limits.cache_seconds
        )

    def application(self) -> Starlette:
        attribute = "/campaigns/{campaign:name}/attributes/{attribute:name}"
        routes = [
            Route("/", self._shown(_home)),
            Route("/index{file_format:file_format}", self._shown(_home)),
            Route("/planner{file_format:file_format}", self._shown(_planner)),
            Route("/campaigns/{campaign:name}/events", self._events),
            Route("/events", self._events),
            Route("/campaigns/{campaign:name}{file_format:file_format}", self._shown(_campaign)),
            Route(attribute + "{file_format:row_format}", self._shown(_over_time)),
            Route(attribute + "/rounds/{round:name}{file_format:row_format}", self._shown(_round)),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/static/{name:asset}", asset),
        ]
        handlers: dict[Any, Any] = {
            HTTPException: _not_found,
            Exception: lambda _request, error: _fault(error, "html").response(),
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    def store(self) -> closing[Store]:
        """The database, for as long as one answer takes."""
        return closing(self._open_store(self.directory))

    def page(self, template: str, **values: Any) -> Answer:
        """A page for people, with the service's health at its top."""
        return page(template, examine(self.directory), **values)

    def _shown(self, make: Make) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            words = dict(request.path_params)
            file_format = words.pop("file_format", "html")
            query = {n: v for n, v in request.query_params.items() if n in PARAMETERS}
            key = f"{request.url.path}?{sorted(query.items())}"
            answer, began = await self._cache.get(
                key, lambda: self._made(make, words, query, file_format)
            )
            response = answer.response()
            response.headers["X-Made"] = f"{began:.3f}"  # older than an event? Then ask again
            return response

        return endpoint

    def _made(self, make: Make, words: dict[str, str], query: Query, file_format: str) -> Answer:
        """The answer, or in one sentence why there is none."""
        try:
            return make(self, words, query, file_format)
        except (CollectorError, ParameterError, OSError) as error:
            known = UnknownCampaign, ParameterError
            status = next((s for kind, s in zip(known, (404, 400)) if isinstance(error, kind)), 503)
            return refusal(status, str(error).rstrip(".") + ".", file_format)
        except Exception as error:  # noqa: BLE001 - a fault here is a sentence, never a traceback
            return _fault(error, file_format)

    async def _events(self, request: Request) -> Response:
        name = request.path_params.get("campaign", ALL)
        reader = origin(request.client.host if request.client else None)
        return StreamingResponse(self.hub.stream(name, reader), media_type="text/event-stream")

    def _health(self, request: Request) -> Response:
        """Open to everyone; the words, which name directories and hosts, only for readers."""
        health = examine(self.directory)
        well, beat = health.well, health.beat
        trouble = "" if well else health.finding if beat else "no collector is running"
        connected = beat is not None and beat.status.connected
        details = {"trouble": trouble} if request.scope[AUTHORISED] else {}
        answer = {"healthy": well, "connected": connected, **details}
        return JSONResponse(answer, 200 if well else 503)

    def _metrics(self, _request: Request) -> Response:
        try:
            text = exposition(registry(self.directory, self._open_store, self._broker_dir))
        except Exception as error:  # noqa: BLE001 - as above; the database may be half made
            return _fault(error, "csv").response()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _not_found(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return refusal(status, "There is no such page; the first page lists the campaigns.").response()


def _fault(error: Exception, file_format: str) -> Answer:
    """An unexpected error; the log has only its type."""
    log.error("a page failed: %s", type(error).__name__)
    return refusal(
        503, "This cannot be shown at the moment; counting continues. Try again soon.", file_format
    )


# --- campaigns ----------------------------------------------------------------------------------


def _home(pages: Pages, _words: dict[str, str], _query: Query, file_format: str) -> Answer:
    cards: dict[str, tuple[charts.Chart, str] | None] = {}
    with pages.store() as store:
        data = facts.overview(store, pages.directory, time.time())
        for campaign in store.campaigns() if file_format == "html" else ():
            cards[campaign.name] = None  # until a question has something to show
            for i, attribute in enumerate(campaign.manifest.attributes):
                chart = _pooled_bars(store, campaign, i, None, HOME_BARS)
                if chart is not None and chart.bars:
                    at = f"/campaigns/{campaign.name}/attributes/{attribute.name}/rounds/pooled"
                    cards[campaign.name] = chart, at
                    break
    if file_format == "json":
        return as_json(data)
    return pages.page("home.html", facts=data, cards=cards)


def _pooled_bars(
    store: Store, campaign: Campaign, index: int, true: list[float] | None, most: int
) -> charts.Chart | None:
    found = pooled_result(store, campaign, index)
    return None if found is None else charts.bar_chart(campaign, found, true, most)


def _campaign(pages: Pages, words: dict[str, str], query: Query, file_format: str) -> Answer:
    drawn: dict[str, tuple[charts.Chart | None, charts.Line | None]] = {}
    with pages.store() as store:
        found = store.campaign(words["campaign"])
        data = facts.campaign_facts(store, found, pages.directory, time.time(), _last(query))
        truth = known_truth(pages.directory, found) or {}
        for i, a in enumerate(found.manifest.attributes if file_format == "html" else ()):
            true = truth.get(a.name)
            bars = _pooled_bars(store, found, i, true, CARD_BARS)
            drawn[a.name] = bars, _sparkline(store, found, i, true)
    if file_format == "json":
        return as_json(data)
    return pages.page("campaign.html", facts=data, drawn=drawn)


def _sparkline(
    store: Store, campaign: Campaign, index: int, true: list[float] | None
) -> charts.Line | None:
    """The most interesting value over time; None before there are two rounds to draw."""
    k = campaign.manifest.attributes[index].k
    last = min(SPARK_ROUNDS, max(2, SPARK_ROWS // k))
    pooled, rounds = latest_results(store, campaign, index, last)
    released = [r for r in rounds if not r.withheld]
    interest = most_interesting(rounds, pooled)
    if interest is None or len(released) < 2:
        return None
    return charts.line(campaign, released, pooled, interest.place, true)


# --- questions ----------------------------------------------------------------------------------


def _over_time(pages: Pages, words: dict[str, str], query: Query, file_format: str) -> Answer:
    last, until = _last(query), _until(query)
    with pages.store() as store:
        found = store.campaign(words["campaign"])
        index = facts.attribute_index(found, words["attribute"])
        most = facts.most_rounds(found, index, pages.limits.rows)
        latest = latest_results(store, found, index, min(last, most), until)
        if file_format == "csv":
            return Answer(content(found, latest.results, "csv"), "csv")
        cut = most < min(last, facts.sealed_rounds(store, found))
        data = facts.over_time(store, found, pages.directory, index, latest, cut=cut)
    fit = query.get("fit", "line")
    if file_format == "json":
        trend = None if fit == NO_FIT else trend_facts(found, index, latest.rounds, fit)
        return as_json({**data, "trend": trend})
    chosen, (pooled, rounds) = _value(query, data), latest
    released = [r for r in rounds if not r.withheld]
    drawn = charts.line(found, released, pooled, chosen, data["truth"]) if released else None
    name = chosen if isinstance(chosen, str) else data["values"][chosen]
    trend = trend_facts(found, index, rounds, fit, [name]) if fit != NO_FIT else None
    row = None if trend is None else _trend_of(trend, chosen, name)
    if drawn is not None and row is not None:
        drawn = charts.with_trend(drawn, row)
    lines = charts.panels(found, rounds, pooled, data["truth"])
    return pages.page(
        "over_time.html",
        facts=data,
        chosen=chosen,
        panels=lines,
        scale=charts.common_scale(lines) if lines else None,
        line=drawn,
        points={} if drawn is None else {point.last: point for point in drawn.points},
        figure=_line_figure(drawn, data),
        trend=trend,
        row=row,
        fit=fit,
        fits=_fits(found, fit),
        last=last,
        lasts=sorted({SHOWN, MOST_SHOWN, last}),
        manifest=found.manifest,
        campaign=found.name,
    )


def _trend_of(trend: Facts, chosen: int | charts.Number, name: str) -> Facts | None:
    """Of the mean, or of a value, which has no unit."""
    measured = isinstance(chosen, str)
    rows = (row for row in trend["trends"] if (row["unit"] is not None) is measured)
    return next((row for row in rows if row["value"] == name), None)


def _fits(found: Campaign, fit: str) -> dict[str, str]:
    """Those that a reader can choose, and the one in the address."""
    names = {NO_FIT: "none", "line": "a line", "smooth": "a smooth curve"}
    waves = {"1d": "a wave of a day", "1w": "a wave of a week", "52w": "a wave of a year"}
    rounds = found.manifest.rounds
    names |= {n: x for n, x in waves.items() if (period_of(n) or 0) <= rounds.period * rounds.count}
    return {**names, fit: names.get(fit, f"a wave of {fit}")}


def _line_figure(drawn: charts.Line | None, data: Facts) -> str:
    """The chosen value over time; nothing while every round is withheld."""
    if drawn is None or not drawn.points:
        return ""
    label = f"{drawn.name} over time, with its band; the numbers are in the table below"
    together = MECHANISMS[data["reporting"]].analysis.together
    return figure(charts.over_time(drawn, label, together))


def _round(pages: Pages, words: dict[str, str], query: Query, file_format: str) -> Answer:
    attribute, number = words["attribute"], words["round"]
    with pages.store() as store:
        found = store.campaign(words["campaign"])
        if number == "all":
            raise UnknownCampaign("all rounds are on the attribute's own page")
        results = facts.chosen_results(store, found, attribute, number)
        sealed, other = store.last_sealed(found.id), query.get("with")
        differ = comparisons(store, found, attribute, number, store, other) if other else []
        others = _others(store, found, results[0], number)
    if file_format == "csv":
        return Answer(content(found, results, "csv"), "csv")
    data = [facts.result_facts(found, result, sealed) for result in results]
    a, b = query.get("a"), query.get("b")  # is A above B?
    compared = [compare(found.manifest, result, a, b) for result in results] if a and b else []
    if file_format == "json":
        return as_json(differ or compared or data)
    every = query.get("intervals") == "all"
    truth = facts.truth_of(pages.directory, found, attribute)
    return pages.page(
        "round.html",
        facts=data[0],
        compared=compared[0] if compared else None,
        differ=differ[0] if differ else None,
        others=others,
        every=every,
        bars=charts.both_bars(data[0]),
        pair=charts.pair_table(data[0]),
        caveat=MECHANISMS[data[0]["reporting"]].analysis.caveat,
        which=number,
        sealed=sealed,
        truth=truth,
        figure=_bars_figure(found, results[0], truth, every),
        distribution=_distribution_figure(data[0], truth),
        edges=charts.edge_bars(data[0]),
        manifest=found.manifest,
        campaign=found.name,
    )


def _others(store: Store, found: Campaign, result: Result, number: str) -> list[tuple[str, str]]:
    """What a result can be compared with: the round before it, and other campaigns that ask the
    same."""
    asked = attribute_of(found.manifest, result)
    others = [campaign for campaign in store.campaigns() if campaign.id != found.id]
    alike = [(c.name, c.manifest.title) for c in others if _asks(c, asked)]
    first = 0 if number == "pooled" else result.first
    return [*[(str(i), f"round {i}") for i in range(first - 1, first) if first], *alike]


def _asks(campaign: Campaign, asked: Attribute) -> bool:
    theirs = ((each.name, each.values) for each in campaign.manifest.attributes)
    return (asked.name, asked.values) in theirs


def _bars_figure(found: Campaign, result: Result, true: list[float] | None, every: bool) -> str:
    if result.withheld:
        return ""
    chart = charts.bar_chart(found, result, true, every=every)
    return figure(charts.bar_legend(chart) + charts.bar_list(chart))


def _distribution_figure(data: Facts, true: list[float] | None) -> str:
    if data["numbers"] is None:
        return ""
    label = "Share of devices below each number, with its band; the numbers are in the table below"
    return figure(charts.distribution(data["numbers"], true, label))


def _last(query: Query) -> int:
    number = _whole(query.get("last", str(SHOWN)))
    if number is None or not 1 <= number <= MOST_SHOWN:
        raise ParameterError("last", query["last"][:40], f"must be from 1 to {MOST_SHOWN} rounds")
    return number


def _until(query: Query) -> int | None:
    """The newest round that is wanted; without it the newest there is."""
    text = query.get("until", "")
    number = _whole(text)
    if number is None and "until" in query:
        raise ParameterError("until", text[:40], "must be a round's number")
    return number


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _value(query: Query, data: Facts) -> int | charts.Number:
    """The index of a value, or the name of a number."""
    values, begin = data["values"], data["interesting"]
    wanted = query.get("value", values[0] if begin is None else begin["value"])
    if data["numeric"] and wanted in ("median", "mean"):
        return cast(charts.Number, wanted)
    if wanted not in values:
        raise ParameterError("value", wanted[:40], "is not one of this attribute's values")
    return cast(list[str], values).index(wanted)


# --- the planner --------------------------------------------------------------------------------

LARGEST: Final = {"n": 1_000_000_000, "k": 4096, "d": 128, "rounds": 100_000}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The planner's form. With a campaign, its own budget and attributes are used."""

    n: int = 10_000
    k: int = 5
    d: int = 1
    eps_inf: float = 2.0
    eps_1: float = 0.6
    f: float = 0.1
    precision: float | None = None
    protocol: str = "auto"
    campaign: str = ""
    reporting: Reporting = DEFAULT_MECHANISM
    rounds: int = 365
    changes: bool = False


PARAMETERS: Final = (
    *("last", "until", "value", "fit", "a", "b", "with", "intervals"),
    *Parameters.__slots__,
)


def _planner(pages: Pages, _words: dict[str, str], query: Query, file_format: str) -> Answer:
    asked = read_parameters(query)
    if asked.campaign:
        with pages.store() as store:
            manifest = store.campaign(asked.campaign).manifest
        planned = plan_manifest(manifest, n=asked.n, f=asked.f, precision=asked.precision)
    else:
        planned = make_plan(asked)
    if file_format == "json":
        return as_json(asdict(planned))
    return pages.page(
        "planner.html",
        facts=planned,
        asked=asked,
        query=urlencode(query),
        mechanisms=tuple(MECHANISMS),
    )


def read_parameters(query: Query) -> Parameters:
    """The parameters in an address; what is not named has its default."""
    given = {name: query.get(name, "").strip() for name in Parameters.__slots__}
    return Parameters(**{name: _parameter(name, text) for name, text in given.items() if text})


def _parameter(name: str, text: str) -> Any:
    if name in LARGEST:
        number = _whole(text)
        if number is None:
            raise ParameterError(name, text[:40], "must be a whole number")
        if not 1 <= number <= LARGEST[name]:
            remedy = f"must be at most {LARGEST[name]:,}" if number else "must be 1 or more"
            raise ParameterError(name, text, remedy)
        return number
    choices = {
        "protocol": ("auto", *LONGITUDINAL),
        "reporting": tuple(MECHANISMS),
        "changes": ("yes", "no"),
    }
    if name in choices:
        if text not in choices[name]:
            raise ParameterError(name, text[:40], f"choose {', '.join(choices[name])}")
        return text == "yes" if name == "changes" else text
    if name == "campaign":
        return text
    try:
        return float(text)
    except ValueError:
        raise ParameterError(name, text[:40], "must be a number") from None


def make_plan(asked: Parameters) -> Plan:
    """The same numbers as `allomfree-collector plan` prints.

    One round for life has all of the budget in one report.
    """
    rules = MECHANISMS[asked.reporting].rules
    once = rules.draws_rounds
    eps_1 = asked.eps_inf if once else asked.eps_1
    budget = Budget(asked.reporting, asked.eps_inf, eps_1, asked.rounds, each=1 if once else 0)
    values = tuple(map(str, range(asked.k)))
    protocol = asked.protocol if asked.protocol in rules.named else "auto"
    attributes = tuple(
        Attribute(f"attribute-{i + 1}", "", values, protocol=protocol, changes=asked.changes)
        for i in range(asked.d)
    )
    return plan_budget(attributes, budget, n=asked.n, f=asked.f, precision=asked.precision)

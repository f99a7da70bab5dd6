"""Which address shows what. Every page is also there as `.json` and `.csv`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from collector.data_dir import read_store
from collector.errors import CollectorError, UnknownCampaign
from collector.health import Health, examine
from collector.records import Campaign
from collector.settings import Address
from collector.show.comparison import Comparison, compare
from collector.show.facts import overview, result_facts
from collector.show.metrics import exposition, registry
from collector.show.selection import chosen_results
from collector.show.tables import write
from collector.show.truth import read_truth
from collector.show.words import CAVEATS
from collector.store import Store
from collector.web import facts, over_time, pictures, planner
from collector.web.assets import TYPES as ASSETS
from collector.web.assets import asset
from collector.web.cache import Cache
from collector.web.connections import origin
from collector.web.events import ALL, Hub
from collector.web.guard import KNOWN, Guard
from collector.web.limits import LIMITS, Limits
from collector.web.render import Answer, as_csv, as_json, page, refusal, table
from protocol_spec import ParameterError, Result

Query = Mapping[str, str]
Make = Callable[["Pages", dict[str, str], Query, str], Answer]

SHOWN = 60
MOST_SHOWN = 1000

log = logging.getLogger("allomfree.page")


class _Name(Convertor[str]):
    regex = "[A-Za-z0-9_-]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Form(_Name):
    regex = r"(?:\.json|\.csv)?"

    def convert(self, value: str) -> str:
        return value.removeprefix(".") or "html"


class _Asset(_Name):
    regex = "|".join(name.replace(".", r"\.") for name in ASSETS)


register_url_convertor("name", _Name())
register_url_convertor("form", _Form())
register_url_convertor("asset", _Asset())


class Pages:
    """The application's state: where the data is, what was answered a moment ago, who listens."""

    def __init__(
        self,
        directory: Path,
        limits: Limits = LIMITS,
        open_store: Callable[[Path], Store] = read_store,
        broker_dir: Path | None = None,
    ) -> None:
        self.directory = directory
        self._broker_dir = broker_dir
        self.limits = limits
        self.hub = Hub(directory, limits, open_store)
        self._open_store = open_store
        self._cache: Cache[Answer] = Cache(
            lambda answer: len(answer.body), keep_seconds=limits.cache_seconds
        )

    def routes(self) -> list[Route]:
        """Every address there is."""
        attribute = "/campaigns/{campaign:name}/attributes/{attribute:name}"
        return [
            Route("/", self._shown(_home)),
            Route("/index{form:form}", self._shown(_home)),
            Route("/planner{form:form}", self._shown(_planner)),
            Route("/campaigns/{campaign:name}/events", self._events),
            Route("/events", self._events),
            Route("/campaigns/{campaign:name}{form:form}", self._shown(_campaign)),
            Route(attribute + "{form:form}", self._shown(_over_time)),
            Route(attribute + "/rounds/{round:name}{form:form}", self._shown(_round)),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/static/{name:asset}", asset),
        ]

    def application(self, address: Address, token: str | None) -> ASGIApp:
        """All of it, behind the guard."""
        handlers: dict[Any, Any] = {HTTPException: _not_found, Exception: _broken}
        app = Starlette(routes=self.routes(), exception_handlers=handlers)
        return Guard(app, address, token, lambda status, why: refusal(status, why).response())

    def store(self) -> closing[Store]:
        """The database, for as long as one answer takes."""
        return closing(self._open_store(self.directory))

    def health(self) -> Health:
        """The service's health, at the top of every page."""
        return examine(self.directory)

    def _shown(self, make: Make) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            words = dict(request.path_params)
            form = words.pop("form", "html")
            query = {n: v for n, v in request.query_params.items() if n in PARAMETERS}
            key = f"{request.url.path}?{sorted(query.items())}"
            answer, began = await self._cache.get(key, lambda: self._made(make, words, query, form))
            response = answer.response()
            response.headers["X-Made"] = f"{began:.3f}"  # older than an event? Then ask again
            return response

        return endpoint

    def _made(self, make: Make, words: dict[str, str], query: Query, form: str) -> Answer:
        """The answer, or in one sentence why there is none."""
        try:
            return make(self, words, query, form)
        except UnknownCampaign as error:
            return refusal(404, _sentence(error), form)
        except ParameterError as error:
            return refusal(400, _sentence(error), form)
        except (CollectorError, OSError) as error:
            return refusal(503, _sentence(error), form)
        except Exception as error:  # noqa: BLE001 - a fault here is a sentence, never a traceback
            return _fault(error, form)

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
        told = {"trouble": trouble} if request.scope[KNOWN] else {}
        answer = {"healthy": well, "connected": connected, **told}
        return JSONResponse(answer, 200 if well else 503)

    def _metrics(self, _request: Request) -> Response:
        try:
            text = exposition(registry(self.directory, self._open_store, self._broker_dir))
        except Exception as error:  # noqa: BLE001 - as above; the database may be half made
            return _fault(error, "csv").response()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."


def _not_found(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return refusal(status, "There is no such page; the first page lists the campaigns.").response()


def _broken(_request: Request, error: Exception) -> Response:
    return _fault(error, "html").response()


def _fault(error: Exception, form: str) -> Answer:
    """An error nobody foresaw; the log says no more than its type."""
    log.error("a page failed: %s", type(error).__name__)
    return refusal(503, "This cannot be shown just now; counting goes on. Try again soon.", form)


# --- the pages --------------------------------------------------------------------------------

PARAMETERS = ("last", "until", "value", "a", "b", "intervals", *(planner.Parameters.__slots__))


def _home(pages: Pages, _words: dict[str, str], _query: Query, form: str) -> Answer:
    with pages.store() as store:
        shown = overview(store, pages.directory, time.time())
        drawn = pictures.of_campaigns(store) if form == "html" else {}
    if form == "json":
        return as_json(shown)
    if form == "csv":
        return table(facts.CAMPAIGN_COLUMNS, facts.home_rows(shown))
    return page("home.html", pages.health(), facts=shown, pictures=drawn)


def _campaign(pages: Pages, words: dict[str, str], query: Query, form: str) -> Answer:
    with pages.store() as store:
        found = store.campaign(words["campaign"])
        shown = facts.campaign(store, found, pages.directory, time.time(), _last(query))
        truth = read_truth(pages.directory, found.name) or {}
        drawn = pictures.of_questions(store, found, truth) if form == "html" else {}
    if form == "json":
        return as_json(shown)
    if form == "csv":
        return table(facts.ROUND_COLUMNS, facts.campaign_rows(shown))
    return page("campaign.html", pages.health(), facts=shown, pictures=drawn)


def _over_time(pages: Pages, words: dict[str, str], query: Query, form: str) -> Answer:
    attribute, last, until = words["attribute"], _last(query), _until(query)
    at, most = pages.directory, pages.limits.rows
    with pages.store() as store:
        found = store.campaign(words["campaign"])
        latest = over_time.over_time_results(store, found, attribute, last, until, most)
        if form == "csv":
            return as_csv(write(found, latest.results, "csv"))
        shown = over_time.over_time(store, found, at, attribute, latest, last, most)
    if form == "json":
        return as_json(shown)
    return page(
        "over_time.html",
        pages.health(),
        facts=shown,
        chosen=_value(query, shown),
        panels=pictures.panels(found, attribute, latest, shown["truth"]),
        **_around(found),
    )


def _round(pages: Pages, words: dict[str, str], query: Query, form: str) -> Answer:
    attribute, number = words["attribute"], words["round"]
    with pages.store() as store:
        found = store.campaign(words["campaign"])
        if number == "all":
            raise UnknownCampaign("all rounds are on the attribute's own page")
        results = chosen_results(store, found, attribute, number)
        sealed = store.last_sealed(found.id)
    if form == "csv":
        return as_csv(write(found, results, "csv"))
    shown = [result_facts(found, result, sealed) for result in results]
    compared = _compared(found, results, query)
    if form == "json":
        return as_json(compared or shown)
    return page(
        "round.html",
        pages.health(),
        facts=shown[0],
        compared=compared[0] if compared else None,
        every=query.get("intervals") == "all",
        caveat=CAVEATS[shown[0]["reporting"]],
        which=number,
        sealed=sealed,
        truth=over_time.truth_of(pages.directory, found, attribute),
        **_around(found),
    )


def _planner(pages: Pages, _words: dict[str, str], query: Query, form: str) -> Answer:
    asked = planner.read_parameters(query)
    if asked.campaign:
        with pages.store() as store:
            planned = planner.make_plan(asked, store)
    else:
        planned = planner.make_plan(asked, None)
    if form == "json":
        return as_json(asdict(planned))
    if form == "csv":
        return table(planner.COLUMNS, planner.rows(planned))
    return page("planner.html", pages.health(), facts=planned, asked=asked, query=urlencode(query))


def _around(found: Campaign) -> dict[str, Any]:
    """What an attribute's page says of its campaign."""
    return {"manifest": found.manifest, "campaign": found.name}


def _last(query: Query) -> int:
    number = _whole(query.get("last", str(SHOWN)))
    if number is None or not 1 <= number <= MOST_SHOWN:
        raise ParameterError("last", query["last"][:40], f"must be from 1 to {MOST_SHOWN} rounds")
    return number


def _until(query: Query) -> int | None:
    """The newest round that is wanted; without it the newest there is."""
    if "until" not in query:
        return None
    number = _whole(query["until"])
    if number is None:
        raise ParameterError("until", query["until"][:40], "must be a round's number")
    return number


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def _value(query: Query, shown: over_time.OverTimeFacts) -> int | str:
    """The index of a value, or the name of a number."""
    values, begin = shown["values"], shown["interesting"]
    wanted = query.get("value", values[0] if begin is None else begin["value"])
    if shown["numeric"] and wanted in ("median", "mean"):
        return wanted
    if wanted not in values:
        raise ParameterError("value", wanted[:40], "is not one of this attribute's values")
    return values.index(wanted)


def _compared(found: Campaign, results: list[Result], query: Query) -> list[Comparison]:
    """Is A above B? Nothing unless both are named."""
    a, b = query.get("a"), query.get("b")
    if not a or not b:
        return []
    return [compare(found.manifest, result, a, b) for result in results]

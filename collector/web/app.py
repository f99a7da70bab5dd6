"""The planner's numbers, from the same function as `plan`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from collector import charts
from collector.data_dir import read_store
from collector.errors import CollectorError, UnknownCampaign
from collector.health import Health, examine
from collector.metrics import exposition, registry
from collector.planning import POOLED_ROUNDS, Plan, Terms, plan_manifest, plan_terms
from collector.records import Campaign
from collector.results import facts
from collector.results.estimates import Comparison, compare
from collector.results.facts import CAVEATS, chosen_results, overview, read_truth, result_facts
from collector.results.tables import write
from collector.results.words import rounds_name
from collector.settings import Address, Settings
from collector.store import Store
from collector.web.guard import KNOWN, LIMITS, Connection, Guard, Limits, Places, origin
from collector.web.live import ALL, Cache, Hub
from collector.web.render import TYPES as ASSETS
from collector.web.render import Answer, as_csv, as_json, asset, page, refusal, table
from protocol_spec import LONGITUDINAL, Attribute, ParameterError, Reporting, Result
from protocol_spec.ways import WAYS

LARGEST: Final = {"n": 1_000_000_000, "k": 4096, "d": 128, "rounds": 100_000}
COLUMNS: Final = (
    "name",
    "k",
    "protocol",
    "why",
    "devices",
    "half_width",
    "half_width_all",
    *(f"half_width_pooled_{t}" for t in POOLED_ROUNDS),
    "floor",
    "devices_for_precision",
    "split_budget_ratio",
    "reporting",
    "changes",
    "difference",
    "difference_all",
    "target",
    "verdict",
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the planner is asked. With a campaign, its own budget and attributes are used."""

    n: int = 10_000
    k: int = 5
    d: int = 1
    eps_inf: float = 2.0
    eps_1: float = 0.6
    f: float = 0.1
    precision: float | None = None
    protocol: str = "auto"
    campaign: str = ""
    reporting: Reporting = "memoized"
    rounds: int = 365
    changes: bool = False


def read_parameters(query: Mapping[str, str]) -> Parameters:
    """The parameters in an address; what is not named has its default."""
    given: dict[str, Any] = {}
    for field in fields(Parameters):
        text = query.get(field.name, "").strip()
        if text:
            given[field.name] = _READ[field.name](field.name, text)
    return Parameters(**given)


def make_plan(asked: Parameters, store: Store | None) -> Plan:
    """The plan: the same numbers as `allomfree-collector plan` prints."""
    if asked.campaign and store is not None:
        manifest = store.campaign(asked.campaign).manifest
        return plan_manifest(manifest, n=asked.n, f=asked.f, precision=asked.precision)
    values = tuple(map(str, range(asked.k)))
    attributes = tuple(
        Attribute(
            f"attribute-{i + 1}",
            "",
            values,
            protocol=asked.protocol if asked.reporting == "memoized" else "auto",
            changes=asked.changes,
        )
        for i in range(asked.d)
    )
    return plan_terms(attributes, _terms(asked), n=asked.n, f=asked.f, precision=asked.precision)


def _terms(asked: Parameters) -> Terms:
    """One round for life has all of the budget in one report."""
    once = asked.reporting == "once"
    return Terms(
        asked.reporting,
        asked.eps_inf,
        asked.eps_inf if once else asked.eps_1,
        asked.rounds,
        each=1 if once else 0,
    )


def rows(planned: Plan) -> list[dict[str, object]]:
    """One row an attribute, the pooled widths in columns of their own."""
    return [
        {
            **asdict(a),
            **{f"half_width_pooled_{t}": width for t, width in a.half_width_pooled.items()},
            "verdict": "; ".join(
                f"{rounds_name(judged.rounds)}: {judged.sentence}" for judged in a.verdict
            ),
        }
        for a in planned.attributes
    ]


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ParameterError(name, text[:40], "must be a whole number")
    if int(text) > LARGEST[name]:
        raise ParameterError(name, text, f"must be at most {LARGEST[name]:,}")
    if int(text) < 1:
        raise ParameterError(name, text, "must be 1 or more")
    return int(text)


def _real(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ParameterError(name, text[:40], "must be a number") from None


def _protocol(name: str, text: str) -> str:
    if text not in ("auto", *LONGITUDINAL):
        raise ParameterError(name, text[:40], f"choose auto, {', '.join(LONGITUDINAL)}")
    return text


def _reporting(name: str, text: str) -> Reporting:
    if text not in WAYS:
        raise ParameterError(name, text[:40], f"choose {', '.join(WAYS)}")
    return cast(Reporting, text)


def _yes(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ParameterError(name, text[:40], "must be yes or no")
    return text == "yes"


def _text(_name: str, text: str) -> str:
    return text


_READ: Final = {
    **dict.fromkeys(("n", "k", "d", "rounds"), _whole),
    **dict.fromkeys(("eps_inf", "eps_1", "f", "precision"), _real),
    "protocol": _protocol,
    "campaign": _text,
    "reporting": _reporting,
    "changes": _yes,
}


# --- Which address shows what. Every page is also there as `.json` and `.csv`.


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

PARAMETERS = ("last", "until", "value", "a", "b", "intervals", *(Parameters.__slots__))


def _home(pages: Pages, _words: dict[str, str], _query: Query, form: str) -> Answer:
    with pages.store() as store:
        shown = overview(store, pages.directory, time.time())
        drawn = charts.of_campaigns(store) if form == "html" else {}
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
        drawn = charts.of_questions(store, found, truth) if form == "html" else {}
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
        latest = facts.over_time_results(store, found, attribute, last, until, most)
        if form == "csv":
            return as_csv(write(found, latest.results, "csv"))
        shown = facts.over_time(store, found, at, attribute, latest, last, most)
    if form == "json":
        return as_json(shown)
    return page(
        "over_time.html",
        pages.health(),
        facts=shown,
        chosen=_value(query, shown),
        panels=charts.panels(found, attribute, latest, shown["truth"]),
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
        truth=facts.truth_of(pages.directory, found, attribute),
        **_around(found),
    )


def _planner(pages: Pages, _words: dict[str, str], query: Query, form: str) -> Answer:
    asked = read_parameters(query)
    if asked.campaign:
        with pages.store() as store:
            planned = make_plan(asked, store)
    else:
        planned = make_plan(asked, None)
    if form == "json":
        return as_json(asdict(planned))
    if form == "csv":
        return table(COLUMNS, rows(planned))
    return page("planner.html", pages.health(), facts=planned, asked=asked, query=urlencode(query))


def _around(found: Campaign) -> dict[str, Any]:
    """What an attribute's page says of its campaign."""
    return {"manifest": found.manifest, "campaign": found.name}


def _last(query: Query) -> int:
    number = _round_number(query.get("last", str(SHOWN)))
    if number is None or not 1 <= number <= MOST_SHOWN:
        raise ParameterError("last", query["last"][:40], f"must be from 1 to {MOST_SHOWN} rounds")
    return number


def _until(query: Query) -> int | None:
    """The newest round that is wanted; without it the newest there is."""
    if "until" not in query:
        return None
    number = _round_number(query["until"])
    if number is None:
        raise ParameterError("until", query["until"][:40], "must be a round's number")
    return number


def _round_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def _value(query: Query, shown: facts.OverTimeFacts) -> int | str:
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


# --- The page's server: one socket, one loop, nothing that can change anything.


LONGEST_HEAD: Final = 16_384
BACKLOG: Final = 256  # also how many are accepted in one turn, so that descriptors last
NICE: Final = 10


class _Server(uvicorn.Server):
    """Ends at once: open event streams are told to end, not waited for."""

    def __init__(self, config: uvicorn.Config, pages: Pages) -> None:
        super().__init__(config)
        self._pages = pages

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.hub.stop()
        await super().shutdown(sockets)


def make_server(pages: Pages, address: Address, token: str | None) -> uvicorn.Server:
    """A server for a socket that listens; a token is needed unless it is None."""
    protocol: Any = partial(Connection, places=Places(pages.limits))
    config = uvicorn.Config(
        pages.application(address, token),
        log_config=None,
        log_level="critical",  # not a line for every malformed request
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=protocol,
        ws="none",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_graceful_shutdown=2,
    )
    return _Server(config, pages)


def serve(
    settings: Settings,
    address: Address,
    token: str | None,
    sock: socket.socket,
    open_store: Callable[[Path], Store],
) -> None:
    """Serve until told to stop, giving way to everything else on the machine."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # while it runs, the server takes both
    os.nice(NICE)
    pages = Pages(settings.data_dir, open_store=open_store, broker_dir=settings.broker_dir)
    make_server(pages, address, token).run([sock])

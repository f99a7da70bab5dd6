"""The places that results come from: a data directory or a shared store, a page, a file.

A file is what `export` writes as JSON or NDJSON, what `estimate --json` prints, or what a page
gives under `.json`.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from collector.data_dir import DATABASE, read_store
from collector.errors import UnknownCampaign, UnreadableResults
from collector.results.facts import chosen_results
from collector.results.groups import group_rows
from collector.results.tables import Columns, columns_of, rows
from collector.results.trends import trends
from collector.settings import SCHEMES, StoreAddress
from collector.store import Store
from protocol_spec.limits import MAX_ROUNDS
from protocol_spec.programs.output import quoted, shown
from protocol_spec.programs.settings import is_loopback

MOST_ROUNDS: Final = 1000  # in one answer
MOST_ANSWERS: Final = 6000  # of one question; a page has room for 12 rounds in one, or more
LARGEST: Final = 1 << 28  # bytes of one answer
TIMEOUT_SECONDS: Final = 60.0
SHARED: Final = tuple(f"{scheme}://" for scheme in SCHEMES)
_HERE: Final = re.compile(r"^/campaigns/([\w-]+)(?:/attributes/([\w-]+)(?:/rounds/([\w-]+))?)?$")
_KINDS: Final = (
    "give a data directory, a page's address, or a file that "
    "`allomfree-collector export` wrote as .json or .ndjson"
)

Found = Mapping[str, Any]


def read(
    source: str | Path, *, campaign: str | None, attribute: str | None, token: str | None
) -> Columns:
    """All rows of a place, or those of one campaign or attribute."""
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        documents = _page_documents(source, campaign, attribute, token)
        found: Iterator[Found] = (row for each in documents for row in rows_of(each))
    elif opened := _store_of(source):
        found = _store_rows(opened, campaign, attribute)
    else:
        found = _chosen(_file_rows(Path(source)), campaign, attribute)
    try:
        return columns_of(found)
    except (UnreadableResults, UnknownCampaign):
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UnreadableResults(f"{source} does not hold results: {error}") from None
    except RecursionError:
        raise UnreadableResults(f"{source} does not hold results: it is nested too deep") from None


# --- a store ------------------------------------------------------------------------------------


def _store_of(source: str | Path) -> Callable[[], Store] | None:
    """How to open it; None for what is no store."""
    if isinstance(source, str) and source.startswith(SHARED):
        try:
            address = StoreAddress(source)
        except ValueError as error:
            raise UnreadableResults(f"{shown(source, 200)}: {error}") from None
        return lambda: read_store(Path(), address)
    path = Path(source)
    directory = path.parent if path.name == DATABASE else path
    is_store = path.is_dir() or path.name == DATABASE
    return (lambda: read_store(directory)) if is_store else None


def _opened(source: str | Path, what: str) -> closing[Store]:
    opened = _store_of(source)
    if opened is None:
        raise UnreadableResults(f"{source} is no data directory or shared store: {what} need one")
    return closing(opened())


def read_trends(
    source: str | Path, fit: str, campaign: str | None, attribute: str | None
) -> list[dict[str, Any]]:
    """Rows of trends, of all campaigns or of one."""
    with _opened(source, "trends") as store:
        names = [campaign] if campaign else [each.name for each in store.campaigns()]
        found = [trends(store, store.campaign(name), attribute, fit) for name in names]
    return [row for facts in found for each in facts for row in each["trends"]]


def read_groups(
    source: str | Path, label: str, number: str, campaign: str | None, attribute: str | None
) -> list[dict[str, Any]]:
    """Rows of groups, of one campaign."""
    with _opened(source, "groups") as store:
        return list(group_rows(store, store.campaign(campaign), attribute, number, label))


def _store_rows(
    opened: Callable[[], Store], campaign: str | None, attribute: str | None
) -> Iterator[Found]:
    with closing(opened()) as store:
        for found in [store.campaign(campaign)] if campaign else store.campaigns():
            names = {a.name for a in found.manifest.attributes}
            if attribute is None or campaign or attribute in names:
                yield from rows(found, chosen_results(store, found, attribute, "all"))


# --- a file -------------------------------------------------------------------------------------


def _chosen(found: Iterator[Found], campaign: str | None, attribute: str | None) -> Iterator[Found]:
    """Those of one campaign, which the beginning of its name names, or of one attribute."""
    kept, seen = 0, set()
    for row in found:
        seen.add(f"{row.get('campaign')} {row.get('attribute')}")
        if (campaign is None or str(row.get("campaign")).startswith(campaign)) and (
            attribute is None or row.get("attribute") == attribute
        ):
            kept += 1
            yield row
    if seen and not kept:
        wanted = " ".join(quoted(name) for name in (campaign, attribute) if name)
        raise UnknownCampaign(f"no results of {wanted} here; there are: {', '.join(sorted(seen))}")


def _file_rows(path: Path) -> Iterator[Found]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableResults(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnreadableResults(f"{path} is not text; {_KINDS}") from None
    try:
        try:
            document = json.loads(text)
        except ValueError:  # perhaps one in each line
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
        yield from rows_of(document)
    except ValueError:
        raise UnreadableResults(f"{path} does not hold results; {_KINDS}") from None


def rows_of(document: Any, question: Found | None = None) -> Iterator[Found]:
    """Rows of what was parsed: rows themselves, results with their histograms, or a page's."""
    if isinstance(document, list):
        for each in document:
            yield from rows_of(each, question)
    elif not isinstance(document, dict):
        raise ValueError("neither rows nor results")
    elif isinstance(document.get("rounds"), list):  # a question over time
        pooled = document.get("pooled")
        yield from rows_of([*([pooled] if pooled else []), *document["rounds"]], document)
    elif isinstance(document.get("histogram"), list):
        bars = document["histogram"] or _withheld(question or {})
        yield from ({**document, **bar} for bar in bars)
        for margin in (document.get("pair") or {}).get("margins", []):
            yield from ({**document, **margin, **bar} for bar in margin["histogram"])
    elif {"campaign", "attribute", "value", "raw"} <= document.keys():
        yield document
    else:
        raise ValueError("neither rows nor results")


def _withheld(question: Found) -> Iterator[Found]:
    """Of a result without a histogram the values, if it is known which there are."""
    values = question.get("values") or [None]
    bins = question.get("bins") or [(None, None)] * len(values)
    for value, (low, high) in zip(values, bins, strict=True):
        yield {"value": value, "bin_low": low, "bin_high": high}


# --- a page, over HTTP --------------------------------------------------------------------------


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a token is for the address it was given for."""

    def redirect_request(self, *_words: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Page:
    root: str
    token: str | None

    def get(self, path: str, **query: object) -> Any:
        """What an address gives as JSON; an error says what went wrong in one sentence."""
        address = f"{self.root}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        proxies = (
            [urllib.request.ProxyHandler({})]
            if is_loopback(urlsplit(self.root).hostname or "")
            else []
        )
        opener = urllib.request.build_opener(_Stay, *proxies)
        request = urllib.request.Request(address, headers=headers)  # noqa: S310 - http or https
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                content: bytes = answer.read(LARGEST + 1)
            if len(content) > LARGEST:
                raise UnreadableResults(f"{address} answers with more than {LARGEST >> 20} MiB")
            return json.loads(content)
        except UnreadableResults:
            raise
        except urllib.error.HTTPError as error:
            raise _refused(address, error) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            explanation = getattr(reason, "strerror", None) or reason
            raise UnreadableResults(f"{address} cannot be read: {explanation}") from None
        except ValueError:
            raise UnreadableResults(f"{address} is not a page of allomfree-collector") from None

    def over_time(self, path: str) -> Found:
        """The pooled result and the rounds, oldest first, in as many answers as it takes."""
        answer = self.get(path, last=MOST_ROUNDS)
        rounds = _list(answer, "rounds")
        begins = _begins(rounds, MAX_ROUNDS)
        for _ in range(MOST_ANSWERS):
            if not begins:
                return {**answer, "rounds": rounds}
            older = _list(self.get(path, last=MOST_ROUNDS, until=begins - 1), "rounds")
            rounds = older + rounds
            begins = _begins(older, begins - 1)
        raise UnreadableResults(f"{self.root}{path} answers in more than {MOST_ANSWERS:,} parts")


def _begins(rounds: list[Found], most: int) -> int:
    """The oldest round of an answer, which must be older than what was asked for before."""
    begins = rounds[0].get("last") if rounds else 0
    if begins is None or (isinstance(begins, int) and 0 <= begins <= most):
        return int(begins or 0)
    raise UnreadableResults(f"that is not a page of allomfree-collector: round {quoted(begins)}")


def _list(answer: Any, name: str) -> list[Found]:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UnreadableResults(f"that is not a page of allomfree-collector: no {name} in it")
    return found


def _page_documents(
    address: str, campaign: str | None, attribute: str | None, token: str | None
) -> Iterator[Any]:
    """Every question's rounds and its pooled result: every campaign's, or the one named."""
    parts = urlsplit(address)
    token = token or parse_qs(parts.query).get("token", [None])[0]
    page = _Page(f"{parts.scheme}://{parts.netloc}", token)
    path = re.sub(r"\.(json|csv)$", "", parts.path.rstrip("/"))
    named = _HERE.match(path)
    if path not in ("", "/index") and named is None:
        raise UnreadableResults(
            f"{address} shows no results; give the page's first address, a campaign's or a "
            "question's"
        )
    if named is not None:
        campaign, attribute = campaign or named[1], attribute or named[2]
        if named[3]:
            yield page.get(f"{path}.json")
            return
    listed = [] if campaign else _list(page.get("/index.json"), "campaigns")
    for name in [campaign] if campaign else [str(each["campaign"]) for each in listed]:
        at = f"/campaigns/{quote(name)}"
        answer = _list(page.get(f"{at}.json", last=1), "attributes")
        found = [str(each["name"]) for each in answer]
        if campaign and attribute and attribute not in found:
            raise UnknownCampaign(f"{campaign} does not ask for {attribute}; it has: {found}")
        for question in found:
            if attribute in (None, question):
                yield page.over_time(f"{at}/attributes/{quote(question)}.json")


def _refused(address: str, error: urllib.error.HTTPError) -> UnreadableResults | UnknownCampaign:
    if error.code == 401:
        return UnreadableResults(
            f"{address} needs the page's token: give the link that `allomfree-collector page "
            "--link` prints, or token=…"
        )
    try:
        explanation = str(json.loads(error.read(4096))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        explanation = f"HTTP status {error.code}"
    kind = UnknownCampaign if error.code == 404 else UnreadableResults
    return kind(f"{address}: {shown(explanation, 600)}")

"""Results that a page gives, over HTTP: every campaign, or the one that an address names."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from collector.errors import UnknownCampaign, UnreadableResults
from protocol_spec.programs.output import shown

MOST_ROUNDS: Final = 1000  # in one answer
LARGEST: Final = 1 << 28  # bytes of one answer
TIMEOUT_SECONDS: Final = 60.0
_HERE: Final = re.compile(r"^/campaigns/([\w-]+)(?:/attributes/([\w-]+)(?:/rounds/([\w-]+))?)?$")


@dataclass(frozen=True, slots=True)
class Page:
    """Where a page is, and what it asks for."""

    root: str
    token: str | None

    def get(self, path: str, **query: object) -> Any:
        """What an address gives as JSON; what went wrong is said in one sentence."""
        address = f"{self.root}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            return json.loads(_fetched(address, headers))
        except urllib.error.HTTPError as error:
            raise _refused(address, error) from None
        except (OSError, urllib.error.URLError) as error:
            raise UnreadableResults(f"{address} cannot be read: {_reason(error)}") from None
        except ValueError:
            raise UnreadableResults(f"{address} is not a page of allomfree-collector") from None


def documents(
    address: str, campaign: str | None, attribute: str | None, token: str | None
) -> Iterator[Any]:
    """Every question's rounds and its pooled result, as the page's JSON says them."""
    parts = urlsplit(address)
    token = token or parse_qs(parts.query).get("token", [None])[0]
    page = Page(f"{parts.scheme}://{parts.netloc}", token)
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
    for name in [campaign] if campaign else _campaigns(page):
        yield from _questions(page, name, attribute, sure=campaign is not None)


def _campaigns(page: Page) -> list[str]:
    return [str(each["campaign"]) for each in _list(page.get("/index.json"), "campaigns")]


def _questions(page: Page, campaign: str, attribute: str | None, *, sure: bool) -> Iterator[Any]:
    at = f"/campaigns/{quote(campaign)}"
    found = [str(each["name"]) for each in _list(page.get(f"{at}.json", last=1), "attributes")]
    if attribute is not None and attribute not in found:
        if sure:
            raise UnknownCampaign(f"{campaign} does not ask for {attribute}; it has: {found}")
        return
    for name in [attribute] if attribute else found:
        yield from _over_time(page, f"{at}/attributes/{quote(name)}.json")


def _over_time(page: Page, path: str) -> Iterator[Any]:
    """The pooled result and the rounds, oldest first, in as many answers as it takes."""
    answers = [page.get(path, last=MOST_ROUNDS)]
    begins = _begins(answers[0])
    while begins > 0:
        answers.append(page.get(path, last=MOST_ROUNDS, until=begins - 1))
        begins = min(begins - 1, _begins(answers[-1]))
    rounds = [each for answer in reversed(answers) for each in _list(answer, "rounds")]
    yield {**answers[0], "rounds": rounds}


def _begins(answer: Any) -> int:
    """The oldest round of an answer; 0 if there is none before it."""
    rounds = _list(answer, "rounds")
    if not rounds:
        return 0
    number = rounds[0].get("round")
    return int((rounds[0].get("last") if number is None else number) or 0)


def _list(answer: Any, name: str) -> list[Mapping[str, Any]]:
    if not isinstance(answer, dict) or not isinstance(answer.get(name), list):
        raise UnreadableResults(f"that is not a page of allomfree-collector: no {name} in it")
    found: list[Mapping[str, Any]] = answer[name]
    return found


class _Stay(urllib.request.HTTPRedirectHandler):
    """A token is for the address it was given for: nobody else is asked instead."""

    def redirect_request(self, *_words: Any) -> None:
        return None


def _fetched(address: str, headers: Mapping[str, str]) -> bytes:
    host = urlsplit(address).hostname or ""
    near = host == "localhost" or host.startswith("127.") or host == "::1"
    proxies = [urllib.request.ProxyHandler({})] if near else []
    opener = urllib.request.build_opener(_Stay, *proxies)
    request = urllib.request.Request(address, headers=dict(headers))  # noqa: S310 - http or https
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UnreadableResults(f"{address} answers with more than {LARGEST >> 20} MiB")
    return content


def _refused(address: str, error: urllib.error.HTTPError) -> UnreadableResults | UnknownCampaign:
    if error.code == 401:
        return UnreadableResults(
            f"{address} needs the page's token: give the link that `allomfree-collector page "
            "--link` prints, or token=…"
        )
    try:
        said = str(json.loads(error.read(4096))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        said = f"HTTP status {error.code}"
    kind = UnknownCampaign if error.code == 404 else UnreadableResults
    return kind(f"{address}: {shown(said, 600)}")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason)

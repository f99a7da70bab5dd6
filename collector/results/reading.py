"""The places that results come from: a data directory or a shared store, a page, a file.

A file is what `export` writes as JSON or NDJSON, what `estimate --json` prints, or what a page
gives under `.json`; earlier versions' files too, whose newer columns are then empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from collector.data_dir import DATABASE, read_store
from collector.errors import UnknownCampaign, UnreadableResults
from collector.results.page import documents
from collector.show.frames import Columns, columns_of
from collector.show.selection import chosen_results
from collector.show.tables import rows
from collector.store import Store
from collector.store_address import SCHEMES, StoreAddress
from protocol_spec.programs.output import quoted, shown

SHARED: Final = tuple(f"{scheme}://" for scheme in SCHEMES)

Found = Mapping[str, Any]


def read(
    source: str | Path, *, campaign: str | None, attribute: str | None, token: str | None
) -> Columns:
    """All rows of a place, or those of one campaign or attribute."""
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        found = _page_rows(source, campaign, attribute, token)
    elif isinstance(source, str) and source.startswith(SHARED):
        found = _store_rows(lambda: read_store(Path(), _address(source)), campaign, attribute)
    elif Path(source).is_dir() or Path(source).name == DATABASE:
        path = Path(source)
        directory = path.parent if path.name == DATABASE else path
        found = _store_rows(lambda: read_store(directory), campaign, attribute)
    else:
        found = _chosen(_file_rows(Path(source)), campaign, attribute)
    try:
        return columns_of(found)
    except ValueError as error:
        if isinstance(error, UnreadableResults):
            raise
        raise UnreadableResults(f"{source} does not hold results: {error}") from None


def _page_rows(
    address: str, campaign: str | None, attribute: str | None, token: str | None
) -> Iterator[Found]:
    for document in documents(address, campaign, attribute, token):
        yield from rows_of(document)


def _address(text: str) -> StoreAddress:
    try:
        return StoreAddress(text)
    except ValueError as error:
        raise UnreadableResults(f"{shown(text, 200)}: {error}") from None


def _store_rows(
    opened: Callable[[], Store], campaign: str | None, attribute: str | None
) -> Iterator[Found]:
    with closing(opened()) as store:
        for found in [store.campaign(campaign)] if campaign else store.campaigns():
            names = {a.name for a in found.manifest.attributes}
            if attribute is None or campaign or attribute in names:
                yield from rows(found, chosen_results(store, found, attribute, "all"))


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
        raise UnreadableResults(f"{path} is no text; {_KINDS}") from None
    try:
        yield from rows_of(_documents(text))
    except ValueError:
        raise UnreadableResults(f"{path} does not hold results; {_KINDS}") from None


_KINDS = (
    "give a data directory, a page's address, or a file that "
    "`allomfree-collector export` wrote as .json or .ndjson"
)


def _documents(text: str) -> Any:
    """One JSON document, or one in each line."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def rows_of(document: Any, question: Found | None = None) -> Iterator[Found]:
    """Rows of what was parsed: rows themselves, results with their histograms, or a page's."""
    if isinstance(document, list):
        for each in document:
            yield from rows_of(each, question)
    elif not isinstance(document, dict):
        raise ValueError("neither rows nor results")
    elif "rounds" in document and isinstance(document["rounds"], list):  # a question over time
        pooled = document.get("pooled")
        yield from rows_of([*([pooled] if pooled else []), *document["rounds"]], document)
    elif isinstance(document.get("histogram"), list):
        yield from document["histogram"] or _withheld(document, question or {})
    elif {"campaign", "attribute", "value", "raw"} <= document.keys():
        yield document
    else:
        raise ValueError("neither rows nor results")


def _withheld(result: Found, question: Found) -> Iterator[Found]:
    """A result without a histogram: a row for each value, if it is known which there are."""
    values = question.get("values") or [None]
    bins = question.get("bins") or [(None, None)] * len(values)
    told = {**result, "device_bound": None, "unit": question.get("unit")}
    for value, (low, high) in zip(values, bins, strict=True):
        yield {**told, "value": value, "bin_low": low, "bin_high": high}

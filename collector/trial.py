"""A trial: a campaign with short rounds that begins at once, to see the whole way in minutes.

It is made from the manifest of the campaign that is meant. Its name, its title and its purpose say
that it is a trial, so that owners read it before they agree, and whoever reads its results, too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from collector.records import Campaign
from protocol_spec import Manifest, ManifestError
from protocol_spec.limits import MAX_PURPOSE_LENGTH, MAX_SLUG_LENGTH, MAX_TITLE_LENGTH

ROUNDS: Final = 15
MIN_REPORTS: Final = 10
PERIOD_SECONDS: Final = 60
MARK: Final = "TRIAL: "
_SUFFIX: Final = "-trial"
_PURPOSE: Final = "A trial of the system: its results mean nothing. For: "
_MEANING: Final = "this is a TRIAL, to see the system at work: its results mean nothing"
_DROPPED: Final = ("created", "expires", "devices", "receipt_pages", "retention")


def is_trial(manifest: Manifest) -> bool:
    """Whether it says of itself that it is one."""
    return manifest.slug.endswith(_SUFFIX) and manifest.title.startswith(MARK)


def trial_warnings(manifest: Manifest) -> list[str]:
    """What stands beside every result of a trial."""
    return [_MEANING] if is_trial(manifest) else []


def read_campaign(
    file: Path, campaigns: Iterable[Campaign], now: int, *, trial_seconds: int | None = None
) -> Manifest:
    """The manifest in a file, or a trial of it with rounds of so many seconds.

    What begins "now" began when it was opened first: the same file is the same campaign for as
    long as that is open and not over.
    """
    for campaign in campaigns:
        first, end = campaign.manifest.rounds.first, campaign.manifest.rounds.end
        if campaign.closed is None and end > now:
            again = _read(file, first, trial_seconds)
            if again.digest == campaign.manifest.digest:
                return again
    return _read(file, now, trial_seconds)


def _read(file: Path, now: int, trial_seconds: int | None) -> Manifest:
    manifest = Manifest.from_file(file, now=now)  # a trial of what is wrong is wrong, too
    if trial_seconds is None:
        return manifest
    document = trial_of(tomllib.loads(file.read_text(encoding="utf-8")), trial_seconds)
    try:
        return Manifest.from_authored(document, now=now)
    except ManifestError as error:
        raise ManifestError(error.problems, f"{file}, as a trial") from None


def trial_of(document: Mapping[str, Any], period_seconds: int = PERIOD_SECONDS) -> dict[str, Any]:
    """What the analyst wrote, as a trial."""
    made = {name: value for name, value in document.items() if name not in _DROPPED}
    rounds = {"first": "now", "period": period_seconds, "count": ROUNDS}
    rounds["grace"] = max(1, period_seconds // 4)
    if document.get("format") != 1:
        rounds["drain"] = max(10, period_seconds)
        if document["rounds"].get("each"):
            rounds["each"] = min(ROUNDS, document["rounds"]["each"])
    return made | {
        "slug": document["slug"][: MAX_SLUG_LENGTH - len(_SUFFIX)].strip("-") + _SUFFIX,
        "title": (MARK + document["title"])[:MAX_TITLE_LENGTH].strip(),
        "purpose": (_PURPOSE + document["purpose"])[:MAX_PURPOSE_LENGTH].strip(),
        "min_reports": min(MIN_REPORTS, document.get("min_reports", MIN_REPORTS)),
        "receipt_pages": 1,
        "retention": 3_600,
        "rounds": rounds,
    }

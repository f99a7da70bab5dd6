"""What every engine does alike: counting bodies, naming outcomes, finding a campaign."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from collector.errors import CollectorError, UnknownCampaign
from collector.records import (
    NO_ROUND,
    Campaign,
    Candidate,
    Counts,
    Refusal,
    RequestOutcome,
    RoundSum,
    Tally,
    Withdrawal,
)
from protocol_spec import BodyFormat, Manifest, Outcome, Result, Way, decode_result
from protocol_spec.programs.output import quoted, shown

Place = tuple[int, int, Outcome]  # campaign, round, outcome: where a counter stands
TallyKey = tuple[int, int, int]  # campaign, round, attribute

KEPT_SECONDS: Final = 86_400.0  # a fenced worker is shown for so long
FENCED: Final = (
    "the other workers no longer wait for this one, because they did not hear of it for too long "
    "or its connection broke. Nothing of the batch was counted or acknowledged; it enlists again "
    "and takes the batch once more"
)
NOT_LEADING: Final = "another worker leads now; nothing was changed, and it does what is due"
_ROUND: Final = itemgetter(0, 1)  # of a `Candidate`
_TALLY: Final = itemgetter(0, 1, 3)
_BODY: Final = itemgetter(6)


def require_same(stored: bytes, manifest: Manifest) -> None:
    """A name is only the beginning of a digest: the one that was opened first keeps it (P3)."""
    if stored == manifest.to_bytes():
        return
    raise CollectorError(
        f"{manifest.campaign} is the name of a campaign that was opened before, with digest "
        f"{hashlib.sha256(stored).hexdigest()}; this manifest's is {manifest.digest.hex()}. "
        "Nothing was opened or changed. Change something in the manifest, and its name changes too"
    )


def count_bodies(bodies: Sequence[bytes], form: BodyFormat) -> Counts:
    """How many of these reports support each value."""
    table = np.frombuffer(b"".join(bodies), dtype=np.uint8).reshape(len(bodies), form.length)
    if form.unary:
        bits: Counts = np.unpackbits(table, axis=1, count=form.k).sum(axis=0, dtype=np.int64)
        return bits
    values = np.zeros(len(bodies), dtype=np.int64)
    for column in range(form.length):
        values = values << 8 | table[:, column]
    counts: Counts = np.bincount(values, minlength=form.k).astype(np.int64)
    return counts


def count_reports(bodies: Sequence[bytes], way: Way) -> Counts:
    """What these reports add to a tally: how many support each value.

    Where a way has several channels, a body begins with the number of its channel, and the row is
    the number of reports and then the counts, channel after channel.
    """
    if len(way.channels) == 1:
        return count_bodies(bodies, way.counted)
    rows = np.zeros((len(way.channels), way.k + 1), dtype=np.int64)
    for channel in {body[0] for body in bodies}:
        mine = [body[1:] for body in bodies if body[0] == channel]
        rows[channel] = len(mine), *count_bodies(mine, way.counted)
    return rows.ravel()


def bodies_by_tally(reports: Iterable[Candidate]) -> dict[TallyKey, list[bytes]]:
    """The bodies that belong into each tally."""
    reports = list(reports)
    keys: list[TallyKey] = list(map(_TALLY, reports))
    if len(set(keys)) == 1:  # nearly always
        return {keys[0]: list(map(_BODY, reports))}
    groups: dict[TallyKey, list[bytes]] = defaultdict(list)
    for key, c in zip(keys, reports):
        groups[key].append(c.body)
    return groups


def together(parts: Sequence[RoundSum]) -> RoundSum:
    """Several rounds of one attribute, added up."""
    return RoundSum(
        min(part.first for part in parts),
        max(part.last for part in parts),
        sum(part.rounds for part in parts),
        Tally(
            sum(part.tally.n for part in parts),
            np.sum([part.tally.counts for part in parts], axis=0, dtype=np.int64),
        ),
    )


def count_outcomes(
    candidates: Sequence[Candidate], outcomes: Sequence[Outcome], refusals: Sequence[Refusal]
) -> Counter[Place]:
    """How often each counter is to be raised for a batch.

    A late report is not counted at its round: nothing of a sealed round changes, its counters
    included.
    """
    counted: Counter[Place] = Counter()
    if outcomes.count(Outcome.ACCEPTED) == len(outcomes):  # nearly always
        for (campaign, number), n in Counter(map(_ROUND, candidates)).items():
            counted[campaign, number, Outcome.ACCEPTED] = n
    else:
        counted.update(
            (c.campaign, NO_ROUND if o is Outcome.LATE else c.round, o)
            for c, o in zip(candidates, outcomes)
        )
    counted.update((r.campaign, r.round, r.outcome) for r in refusals)
    return counted


def count_requests(
    done: Sequence[Withdrawal], repeated: int, invalid: int
) -> Counter[RequestOutcome]:
    """How often each counter is to be raised for a batch of requests."""
    again = sum(withdrawal.repeated for withdrawal in done)
    return Counter(
        {
            RequestOutcome.DONE: len(done) - again,
            RequestOutcome.REPEATED: again + repeated,
            RequestOutcome.INVALID: invalid,
        }
    )


def find_campaign(known: Sequence[Campaign], name: str | None) -> Campaign:
    """The campaign with that name or the only one that begins so; without a name the only one."""
    found = [c for c in known if name is None or c.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(c.name for c in known) or "none"
    if name is None and found:
        raise UnknownCampaign(f"there are several campaigns; name one of them: {names}")
    if name is None:
        raise UnknownCampaign("there is no campaign here; open one first")
    what = (
        f"{quoted(name)} matches several campaigns" if found else f"unknown campaign {quoted(name)}"
    )
    raise UnknownCampaign(f"{what}; known campaigns: {shown(names, 600)}")


def attribute_index(campaign: Campaign, result: Result) -> int:
    """The number of a result's attribute in its campaign."""
    return [attribute.name for attribute in campaign.manifest.attributes].index(result.attribute)


def read_result(message: bytes) -> Result:
    """A stored result; one that does not decode was not stored by us."""
    result = decode_result(message)
    if not isinstance(result, Result):
        raise AssertionError("a stored result does not decode")
    return result

"""What every engine does alike: counting bodies, naming outcomes, finding a campaign."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from collector.errors import UnknownCampaign
from collector.records import NO_ROUND, Campaign, Candidate, Counts, Refusal, RoundSum, Tally
from protocol_spec import BodyFormat, Outcome, Result, Way, decode_result

Place = tuple[int, int, Outcome]  # campaign, round, outcome: where a counter stands
TallyKey = tuple[int, int, int]  # campaign, round, attribute


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
    groups: dict[TallyKey, list[bytes]] = defaultdict(list)
    for c in reports:
        groups[c.campaign, c.round, c.attribute].append(c.body)
    return groups


def together(parts: Sequence[RoundSum]) -> RoundSum | None:
    """Several rounds of one attribute, added up."""
    if not parts:
        return None
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
    counted: Counter[Place] = Counter(
        (c.campaign, NO_ROUND if o is Outcome.LATE else c.round, o)
        for c, o in zip(candidates, outcomes)
    )
    counted.update((r.campaign, r.round, r.outcome) for r in refusals)
    return counted


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
    what = f"{name!r} matches several campaigns" if found else f"unknown campaign {name!r}"
    raise UnknownCampaign(f"{what}; known campaigns: {names}")


def attribute_index(campaign: Campaign, result: Result) -> int:
    """The number of a result's attribute in its campaign."""
    return [attribute.name for attribute in campaign.manifest.attributes].index(result.attribute)


def read_result(message: bytes) -> Result:
    """A stored result; one that does not decode was not stored by us."""
    result = decode_result(message)
    if not isinstance(result, Result):
        raise AssertionError("a stored result does not decode")
    return result

"""What becomes of a batch: decided before anything is changed."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence

from collector.records import FORGOTTEN, Candidate, Tally, Withdrawal
from collector.store.memory.tables import KnownDevice, Round, Tables
from collector.store.shared import TallyKey, bodies_by_tally, count_reports
from protocol_spec import Outcome


def outcomes_of(tables: Tables, candidates: Sequence[Candidate]) -> list[Outcome]:
    """What becomes of every candidate, round by round as they appear in the batch."""
    outcomes = [Outcome.LATE] * len(candidates)
    rounds: dict[Round, list[int]] = defaultdict(list)
    for i, c in enumerate(candidates):
        rounds[c.campaign, c.round].append(i)
    held = {key: [reports] for key, reports in tables.reports.items()}
    for key, members in rounds.items():
        if key not in tables.sealed:
            new: dict[int, Candidate] = {}
            held.setdefault(key, []).append(new)
            for i in members:
                outcomes[i] = _outcome(tables, candidates[i], held)
                if outcomes[i] is Outcome.ACCEPTED:
                    new[candidates[i].device] = candidates[i]
    return outcomes


def _outcome(
    tables: Tables, c: Candidate, held: Mapping[Round, Sequence[Mapping[int, Candidate]]]
) -> Outcome:
    """Against what is stored, and what the batch has brought so far."""
    known = tables.devices.get((c.campaign, c.device))
    if known is not None and known.attribute == FORGOTTEN:
        return Outcome.FORGOTTEN
    attribute = c.attribute if known is None else known.attribute
    same: Candidate | None = None
    for (campaign, number), parts in held.items():
        for report in (part[c.device] for part in parts if c.device in part):
            if campaign == c.campaign and number != c.round:
                attribute = report.attribute
            elif campaign == c.campaign:
                same = report
    if attribute != c.attribute:
        return Outcome.ATTRIBUTE_CHANGED
    if same is None:
        return Outcome.ACCEPTED
    repeated = (same.attribute, same.body) == (c.attribute, c.body)
    return Outcome.DUPLICATE if repeated else Outcome.CONFLICT


def withdraw(tables: Tables, campaign: int, device: int) -> Withdrawal:
    """Take a device's reports out of every open round, without the counts, and forget it."""
    key = (campaign, device)
    known = tables.devices.get(key)
    if known is not None and known.attribute == FORGOTTEN:
        return Withdrawal(*key, (), repeated=True)
    rounds = [reports for place, reports in tables.reports.items() if place[0] == campaign]
    gone = [reports.pop(device) for reports in rounds if device in reports]
    if known is not None:
        tables.devices[campaign, -1 - secrets.randbits(63)] = known
    tables.devices[key] = KnownDevice(FORGOTTEN)
    return Withdrawal(*key, tuple(gone), repeated=False)


def changed_tallies(
    tables: Tables, reports: Sequence[Candidate], sign: int
) -> dict[TallyKey, Tally]:
    """The tallies that these reports belong into, with them added or taken out."""
    changed = {}
    for key, bodies in bodies_by_tally(reports).items():
        way = tables.campaigns[key[0]].manifest.ways[key[2]]
        added = sign * count_reports(bodies, way)
        old = tables.tallies.get(key) or Tally(0, 0 * added)
        changed[key] = Tally(old.n + sign * len(bodies), old.counts + added)
    return changed

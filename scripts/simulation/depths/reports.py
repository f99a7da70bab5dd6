"""A campaign report by report, counted at once: no collector's admission, no database."""

from __future__ import annotations

from collections import Counter

from protocol_spec import Outcome
from simulation.collected import Collected, Progress, Simulated
from simulation.model.bulk_randomiser import count
from simulation.model.fleet import Fleet


def as_reports(fleet: Fleet, progress: Progress = lambda _: None) -> Simulated:
    """Every report, counted at once. `progress` is called with numbers of reports."""
    formats = fleet.manifest.body_formats
    made = [Collected.empty(fleet.rounds, form.k) for form in formats]
    outcomes: tuple[Counter[Outcome], ...] = tuple(Counter() for _ in range(fleet.rounds))
    late = 0
    for batch in fleet.batches():
        mine = made[batch.attribute]
        for t in range(fleet.rounds):
            sent = batch.reports()
            counted = sent.bodies[~sent.late] if sent.late.any() else sent.bodies
            mine.n[t] += len(counted)
            mine.counts[t] += count(formats[batch.attribute], counted)
            mine.truth[t] += batch.held()
            outcomes[t][Outcome.ACCEPTED] += len(counted)
            outcomes[t][Outcome.DUPLICATE] += int((sent.twice & ~sent.late).sum())
            late += int(sent.late.sum() + (sent.twice & sent.late).sum())
            progress(len(sent.bodies))
        mine.participation[1:] += batch.participation()[1:]
    return Simulated(fleet.manifest, fleet.rounds, tuple(made), outcomes, late)

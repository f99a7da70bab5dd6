"""A campaign report by report, counted at once: no collector's admission, no database."""

from __future__ import annotations

from collections import Counter

from protocol_spec import Outcome
from simulation.collected import Progress, Simulated
from simulation.counted import Collected
from simulation.model.bulk_ways import bulk
from simulation.model.fleet import Fleet


def as_reports(fleet: Fleet, progress: Progress = lambda _: None) -> Simulated:
    """Every report, counted at once. `progress` is called with numbers of reports."""
    ways = fleet.manifest.ways
    made = [Collected.empty(fleet.rounds, way.k, len(way.channels)) for way in ways]
    outcomes: tuple[Counter[Outcome], ...] = tuple(Counter() for _ in range(fleet.rounds))
    late = 0
    for batch in fleet.batches():
        mine, counting = made[batch.attribute], bulk(ways[batch.attribute])
        for t in range(fleet.rounds):
            sent = batch.reports()
            in_time = ~sent.late if sent.late.any() else slice(None)
            counted = sent.bodies[in_time]
            n, counts = counting.tally(counted, sent.codes[in_time])
            mine.n_by_channel[t] += n
            mine.counts_by_channel[t] += counts
            mine.truth[t] += batch.held()
            outcomes[t][Outcome.ACCEPTED] += len(counted)
            outcomes[t][Outcome.DUPLICATE] += int((sent.twice & ~sent.late).sum())
            late += int(sent.late.sum() + (sent.twice & sent.late).sum())
            progress(len(sent.bodies))
        mine.participation[1:] += batch.participation()[1:]
    return Simulated(fleet.manifest, fleet.rounds, tuple(made), outcomes, late)

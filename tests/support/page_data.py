"""Data that the page's tests show: two sealed rounds, one that fills, and refused messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collector.records import Campaign, Refusal
from collector.store import Store
from protocol_spec import Outcome
from tests.support.collector_fakes import COLOUR, FIRST, candidate, seal, three_questions

ENOUGH = 4


def filled(store: Store) -> Campaign:
    """Two rounds sealed and one that fills; the third attribute's are too few from round 1 on."""
    made = store.open_campaign(three_questions(min_reports=ENOUGH), FIRST)
    for number in range(3):
        fuel = [candidate(made, d, number, body=d % 4) for d in range(10 - number)]
        colours = [candidate(made, d, number, COLOUR, body=d) for d in range(20, 26 - 3 * number)]
        refused = [Refusal(made.id, number, Outcome.BAD_LENGTH)] * 2
        store.commit(fuel + colours, refused)
        if number < 2:
            seal(store, made, number)
    return made


def pages_of(campaign: Campaign) -> str:
    """Where the first attribute's pages begin."""
    return f"/campaigns/{campaign.name}/attributes/fuel"


@dataclass(frozen=True, slots=True)
class Own:
    """The same data for one test alone, which may change it."""

    data: Path
    store: Store
    campaign: Campaign

    @property
    def fuel(self) -> str:
        return pages_of(self.campaign)

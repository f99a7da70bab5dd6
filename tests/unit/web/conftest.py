from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.records import Campaign, Refusal
from collector.store import Store
from protocol_spec import Outcome
from tests.support.collector_cli import cli, home
from tests.support.collector_fakes import COLOUR, FIRST, candidate, seal, three_questions
from tests.support.site import Site, serving

__all__ = ["cli", "home"]

ENOUGH = 4


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(data: Path) -> Iterator[Store]:
    opened = open_store(data)
    yield opened
    opened.close()


@pytest.fixture
def campaign(store: Store) -> Campaign:
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


@pytest.fixture
def site(data: Path, campaign: Campaign) -> Iterator[Site]:
    with serving(data) as served:
        yield served


@pytest.fixture
def fuel(campaign: Campaign) -> str:
    """Where the first attribute's pages begin."""
    return f"/campaigns/{campaign.name}/attributes/fuel"

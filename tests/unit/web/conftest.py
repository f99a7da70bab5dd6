from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
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


# --- one for all the tests of a module, which only read it --------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "data"


@pytest.fixture(scope="module")
def store(data: Path) -> Iterator[Store]:
    with closing(open_store(data)) as opened:
        yield opened


@pytest.fixture(scope="module")
def campaign(store: Store) -> Campaign:
    return filled(store)


@pytest.fixture(scope="module")
def site(data: Path, campaign: Campaign) -> Iterator[Site]:
    with serving(data) as served:
        yield served


@pytest.fixture(scope="module")
def fuel(campaign: Campaign) -> str:
    return pages_of(campaign)


# --- one of its own for a test that changes it --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Own:
    """Data with the same campaign."""

    data: Path
    store: Store
    campaign: Campaign

    @property
    def fuel(self) -> str:
        return pages_of(self.campaign)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    with closing(open_store(tmp_path / "own")) as opened:
        yield Own(tmp_path / "own", opened, filled(opened))

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.records import Campaign
from collector.store import Store
from tests.support.command_line import cli, home
from tests.support.pages import Own, Site, filled, pages_of, serving

__all__ = ["cli", "home"]

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


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    with closing(open_store(tmp_path / "own")) as opened:
        yield Own(tmp_path / "own", opened, filled(opened))

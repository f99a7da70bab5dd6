from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.store import Store
from tests.support.databases import ENGINES, Engine


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """How a store is opened; every test of the port runs over every engine."""
    return ENGINES[request.param](tmp_path)


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    opened = engine.open()
    yield opened
    opened.close()

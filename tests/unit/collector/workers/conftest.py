from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from collector.data_dir import DeviceKey
from tests.support.collector import Site, Workers


@pytest.fixture
def site(key: DeviceKey) -> Iterator[Site]:
    """Makes sites with workers, and closes their stores."""
    with ExitStack() as stack:

        def make(**options: Any) -> Workers:
            return stack.enter_context(closing(Workers(key, **options)))

        yield make

"""What several tests of packages need: the wheel, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from supply import wheel


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel."""
    return wheel.build(tmp_path_factory.mktemp("wheel"))

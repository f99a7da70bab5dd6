"""The link at the foot of a page saves the rows that `export --format csv` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser.chromium import Browser
from tests.support.browser.served import ServedSample
from tests.support.collector_cli import printed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "number"), [("round", "latest"), ("over-time", "all")])
def test_the_rows_are_those_of_the_command(
    browser: Browser, served: ServedSample, tmp_path: Path, kind: str, number: str
) -> None:
    browser.read(served.page(kind))
    browser.save_into(tmp_path)
    browser.part("#as-csv").click()
    browser.until(lambda: [*tmp_path.glob("*.csv")])
    (saved,) = tmp_path.iterdir()
    wanted = ("--attribute", "heating", "--round", number, "--data-dir", served.sample.data)
    told = printed("export", served.sample.simulation, "--format", "csv", *wanted)
    assert saved.read_bytes() == told.encode()

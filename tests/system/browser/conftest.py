from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.browser import Browser, Sample, build
from tests.support.pages import serving


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of a worker, which ends with them: it is never quite idle."""
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The browser with one empty window that remembers nothing."""
    chromium.renew()
    return chromium


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """The sample, which no test changes, served while a worker's tests run."""
    sample = build(tmp_path_factory.mktemp("sample"))
    with serving(sample.data) as site:
        yield replace(sample, url=site.url)

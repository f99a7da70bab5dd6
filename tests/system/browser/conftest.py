from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser.chromium import Browser
from tests.support.browser.sample import build
from tests.support.browser.served import ServedSample
from tests.support.site import serving


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSample]:
    """The sample, served while a module's tests run."""
    sample = build(tmp_path_factory.mktemp("sample"))
    with serving(sample.data) as site:
        yield ServedSample(site.url, sample)

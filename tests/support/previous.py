"""Files that the previous release made, and the fleet whose reports are in them.

`tests/system/compatibility/make.py` makes them, and says what is there.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol_spec import Manifest, Report, Topics, digest8
from tests.support.places import ROOT

ARCHIVE = ROOT / "tests/system/compatibility/previous.tar.gz"
MADE = 1_700_000_000  # the archive's time stamps
BEGIN = 1_800_000_000  # of round 0
PERIOD = 10
MANIFEST = f"""\
format = 1
slug = "{{slug}}"
title = "A campaign of the previous release"
purpose = "Compatibility"
owner = "The tests"
contact = "tests@example.org"
eps_inf = 2.0
eps_1 = 0.6
min_reports = 1
receipt_pages = 2
[rounds]
first = {BEGIN}
period = {PERIOD}
count = 1000
grace = {PERIOD}
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "heat"
question = "How warm is it?"
edges = [-inf, 0, 10, 20, 30, 40, 50, 60, 70, 80, 90, inf]
unit = "°C"
"""
FLEET = [f"device-{number}" for number in range(6)]
REVOKED, FORGOTTEN = FLEET[4], FLEET[5]


def moment(number: int) -> float:
    """In the middle of a round."""
    return BEGIN + PERIOD * number + PERIOD / 2


def report(manifest: Manifest, device: str, number: int, attempt: int = 0) -> tuple[str, bytes]:
    """What a device of the fleet sends; its attribute and bits follow from its name."""
    place = FLEET.index(device)
    attribute = place % 2
    bits = manifest.body_formats[attribute]
    body = bits.encode((place + number + attempt) % bits.k)
    message = Report(digest8(manifest), number, attribute, body)
    return Topics(manifest.campaign).report(device), message.encode()


def until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit, "timed out"
        time.sleep(0.1)


def rows(file: Path, query: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


@dataclass(frozen=True, slots=True)
class Previous:
    """The release's files, unpacked."""

    directory: Path

    @classmethod
    def unpacked(cls, directory: Path) -> Previous:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(directory, filter="fully_trusted")  # noqa: S202 - our own
        return cls(directory)

    @property
    def facts(self) -> dict[str, Any]:
        """What the release said about them."""
        told: dict[str, Any] = json.loads((self.directory / "facts.json").read_text("utf-8"))
        return told

    def manifest(self, slug: str) -> Manifest:
        return Manifest.from_file(self.directory / f"{slug}.toml")

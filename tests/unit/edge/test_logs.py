"""Logs: one JSON object a line where nobody watches, plain lines on a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from protocol_spec.programs.output import set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    yield
    logger = logging.getLogger("allomfree")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


def logged(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, level: str) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging(level)
    log = logging.getLogger("allomfree.edge")
    log.debug("a detail")
    log.info("größer")
    log.warning("%s: full", "disk", extra={"state": "DISK_FULL"})
    return stream.getvalue()


def test_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.loads(line) for line in logged(monkeypatch, io.StringIO(), "info").splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning"]
    assert [line["message"] for line in lines] == ["größer", "disk: full"]
    assert [line.get("state") for line in lines] == [None, "DISK_FULL"]
    assert all(line["at"].endswith("+00:00") for line in lines)


def test_plain_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = logged(monkeypatch, Terminal(), "debug").splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "DEBUG a detail",
        "INFO größer",
        "WARNING disk: full",
    ]


def test_setting_up_twice_does_not_say_everything_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_logging("info")
    assert len(logged(monkeypatch, io.StringIO(), "warning").splitlines()) == 1

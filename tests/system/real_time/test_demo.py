"""The demonstration as a person runs it: real broker, collector, agents, and a kill -9."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.real_time import Demonstrated, Finished, demonstrate


def processes_naming(text: str) -> list[str]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in command and str(os.getpid()) != directory.name:
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine gets longer rounds
def test_everything_is_counted_once_across_the_kill_and_nothing_is_left(
    demonstration: Finished[Demonstrated],
) -> None:
    """Nor does it hear of the collector that its user really runs."""
    done, work = demonstration.result, demonstration.directory / "work"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of 5 checks hold." in done.stdout
    assert "kill -9" in done.stdout
    assert "Ledger:" in done.stdout  # the owner's view of one device
    figure = (work / "demo.svg").read_text(encoding="utf-8")
    assert figure.lstrip().startswith(("<svg", "<?xml"))
    assert processes_naming(str(demonstration.directory)) == []
    assert [path.name for path in work.iterdir()] == ["demo.svg"]


def test_a_collector_that_cannot_start_is_told_of_in_its_own_words() -> None:
    done = demonstrate("--devices", "20", "--broker", "nonsense")
    assert done.returncode == 1
    assert "the collector ended" in done.stderr
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_numbers_that_make_no_sense_are_refused() -> None:
    done = demonstrate("--devices", "0")
    assert done.returncode == 2
    assert "--devices" in done.stderr

"""The demonstration as a person runs it: real broker, collector, agents, and a kill -9."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import click
import pytest

from collector.data_dir import open_store
from demonstration import story
from tests.support.places import ROOT
from tests.support.simulation.campaigns import both
from tests.support.simulation.users import real_user

COMMAND = (sys.executable, "-m", "demonstration")


def demonstrate(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{ROOT / 'scripts'}{os.pathsep}{ROOT}"
    return subprocess.run(
        [*COMMAND, *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


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
def test_everything_is_counted_once_across_the_kill_and_nothing_is_left(tmp_path: Path) -> None:
    """Nor does it hear of the collector that its user really runs."""
    work, figure = tmp_path / "work", tmp_path / "work" / "demo.svg"
    work.mkdir()
    done = demonstrate(
        *("--devices", "60", "--rounds", "2", "--figure", str(figure)),
        TMPDIR=str(work),
        **real_user(tmp_path / "home"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of 5 checks hold." in done.stdout
    assert "kill -9" in done.stdout
    assert "Ledger:" in done.stdout  # the owner's view of one device
    assert figure.read_text(encoding="utf-8").lstrip().startswith(("<svg", "<?xml"))
    assert processes_naming(str(tmp_path)) == []
    assert [path.name for path in work.iterdir()] == ["demo.svg"]


def test_a_collector_that_cannot_start_is_told_of_in_its_own_words() -> None:
    done = demonstrate("--devices", "20", "--broker", "nonsense")
    assert done.returncode == 1
    assert "the collector ended" in done.stderr
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_agents_that_cannot_start_are_told_of_in_their_own_words(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "collector")) as store, ExitStack() as stack:
        campaign = store.open_campaign(both(), 0)
        demo = story.Demo(tmp_path, stack, "mqtt://127.0.0.1:1")
        with pytest.raises(click.ClickException, match="could not start") as raised:
            demo._start_fleet(campaign, 20)  # whose manifest nobody wrote
    assert "FileNotFoundError" in raised.value.message


def test_numbers_that_make_no_sense_are_refused() -> None:
    done = demonstrate("--devices", "0")
    assert done.returncode == 2
    assert "--devices" in done.stderr

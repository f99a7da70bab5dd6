"""The commands: what they print and write, and that a mistake is one clear line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from simulation.cli import main
from tests.support.campaigns import manifest_text
from tests.support.harness import ROOT
from tests.support.simulation import FIRST, FUEL, hours

DOCS = ROOT / "docs"
DEVICES = ("--devices", "1000")


@pytest.fixture
def toml(tmp_path: Path) -> str:
    path = tmp_path / "campaign.toml"
    path.write_text(manifest_text(first=FIRST, count=5, attributes=FUEL + hours()))
    return str(path)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.parametrize("depth", ["statistics", "reports"])
def test_a_run_prints_rows_and_tells_a_person_what_it_did(depth: str, toml: str) -> None:
    done = call(depth, toml, "--devices", "2000", "--rounds", "2", "--format", "ndjson")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert len(rows) == (4 + 20) * 3
    assert "2,000 devices, uniform, 2 rounds (seed 1)" in done.stderr
    assert f"{depth}: 4,000 accepted" in done.stderr
    assert call(depth, toml, "--devices", "2000", "--rounds", "2", "--format", "ndjson").stdout == (
        done.stdout
    )


def test_every_behaviour_can_be_asked_for(toml: str, tmp_path: Path) -> None:
    done = call(
        "reports", toml, "--devices", "4000", "--population", "fuel=zipf:1.2", "--population",
        "hour=dirichlet:0.5", "--dropout", "0.1", "--dropout-by-value", "gas=0.5", "--churn",
        "0.1", "--changes", "0.1", "--late", "0.1", "--duplicates", "0.1", "--dishonest", "9:h3",
        "--rounds", "2", "--into", tmp_path / "data", "--output", tmp_path / "x.csv",
        "--store", tmp_path / "run", "--batch", "500",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {"accepted", "late", "duplicate"} == set(facts["outcomes"])
    assert facts["behaviour"]["dropout_by_value"] == {"0": {"1": 0.5}}
    assert (tmp_path / "data" / "collector.db").exists()
    assert done.stdout == ""


@pytest.mark.slow
def test_a_figure_is_drawn_and_the_same_each_time(toml: str, tmp_path: Path) -> None:
    pictures = []
    for name in ("a.svg", "b.svg", "c.png"):
        call("statistics", toml, "--devices", "9000", "--figure", tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert all(
        word in pictures[0] for word in (b"devices, L-GRR", b"devices, L-OSUE", b"truth", b"wood")
    )
    assert pictures[2].startswith(b"\x89PNG")


def test_two_stored_runs_are_compared(toml: str, tmp_path: Path) -> None:
    common = ("--devices", "20000", "--output", tmp_path / "rows")
    call("statistics", toml, *common, "--store", tmp_path / "a")
    call("reports", toml, *common, "--store", tmp_path / "b")
    call("reports", toml, *common, "--store", tmp_path / "c", "--dropout-by-value", "wood=0.9")
    same = call("compare", tmp_path / "a", tmp_path / "b")
    assert (same.exit_code, "The runs agree" in same.stdout) == (0, True)
    other = call("compare", tmp_path / "a", tmp_path / "c", "--json")
    assert (other.exit_code, json.loads(other.stdout)["agree"]) == (1, False)


def test_a_manifest_for_a_data_set_is_ready_to_use(tmp_path: Path) -> None:
    (tmp_path / "nursery.toml").write_text(call("manifest", "nursery").stdout)
    done = call("statistics", tmp_path / "nursery.toml", "--population", "nursery")
    assert "12,960 devices, nursery" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.toml",), "cannot be read"),
        (("--population", "moon"), "'moon' is unknown"),
        (("--rounds", "6"), "the manifest has 5 rounds"),
        (("--rounds", "0"), "the manifest has 5 rounds"),
        (("--dropout", "1.5"), "between 0 and 1"),
        (("--figure", "x.pdf"), ".svg or .png"),
        (("--output", "/nowhere/at/all"), "cannot be written"),
        (("--figure", "/nowhere/at/all.svg"), "cannot be written"),
    ],
)
def test_a_mistake_is_one_clear_line(toml: str, words: tuple[str, ...], said: str) -> None:
    done = call("statistics", *([] if words[0].endswith(".toml") else [toml]), *words, *DEVICES)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_kept_run_is_not_overwritten(toml: str, tmp_path: Path) -> None:
    words = ("statistics", toml, "--devices", "1000", "--store", tmp_path / "run")
    assert call(*words).exit_code == 0
    done = call(*words)
    assert (done.exit_code, "already holds a run" in done.stderr) == (2, True)


def test_every_command_and_option_is_documented() -> None:
    text = (DOCS / "simulate.md").read_text(encoding="utf-8")
    for name, command in main.commands.items():
        assert f"allomfree-sim {name}" in text, name
        for option in command.params:
            if isinstance(option, click.Option):
                assert re.search(rf"{option.opts[0]}\b", text), f"{name} {option.opts[0]}"

"""The picture in the terminal: as wide as it is, with what it can show, and the numbers beside."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from collector.records import Campaign
from collector.results.facts import ResultFacts, write_truth
from collector.results.tables import Row
from collector.terminal import ASCII, UNICODE, Bar, Ink, draw_bars, ink_of, plot_text
from tests.support.collector_cli import data, file, used
from tests.support.command_line import Cli

__all__ = ["data", "file", "used"]  # fixtures


def row(value: str, raw: float, low: float, high: float) -> Row:
    return {
        "campaign": "heat-1",
        "digest": "00",
        "attribute": "fuel",
        "round": None,
        "rounds": 3,
        "value": value,
        "protocol": "L-GRR",
        "n": 1234,
        "devices": 500,
        "min_reports": 200,
        "withheld": False,
        "count": 0,
        "raw": raw,
        "projected": raw / 2,
        "privacy_error": 0.05,
        "sampling_error": 0.02,
        "confidence": 0.95,
        "low": low,
        "high": high,
        "low_all": low,
        "high_all": high,
        "device_bound": 0.01,
        "reporting": "memoized",
        "first": 0,
        "last": 2,
        "n_eff": 500.0,
        "difference_pair": 0.1,
        "difference_tallest": 0.2,
        "cdf": None,
        "cdf_low": None,
        "cdf_high": None,
        "mean": None,
        "mean_low": None,
        "mean_high": None,
        "mean_bias": None,
        "median": None,
        "median_low": None,
        "median_high": None,
        "opens": None,
        "closes": None,
        "bin_low": None,
        "bin_high": None,
        "unit": "",
    }


FACTS: ResultFacts = {
    "campaign": "heat-1",
    "digest": "00",
    "attribute": "fuel",
    "question": "What heats your home?",
    "round": None,
    "rounds": 3,
    "final": True,
    "protocol": "L-GRR",
    "n": 1234,
    "devices": 500,
    "min_reports": 200,
    "withheld": False,
    "confidence": 0.95,
    "smallest_visible": 0.1,
    "device_bound": 0.01,
    "histogram": [
        row("gas", 0.4, 0.3, 0.5),
        row("heat pump", 0.1, 0.0, 0.2),
        row("木" * 40, 0.0, 0.0, 0.1),
    ],
    "outcomes": {},
    "reporting": "memoized",
    "first": 0,
    "last": 2,
    "n_eff": 500.0,
    "difference": {"pair": 0.1, "tallest": 0.2},
    "numbers": None,
    "warnings": [],
    "opens": None,
    "closes": None,
}


def test_the_number_is_the_raw_estimate_and_says_so() -> None:
    shown = plot_text(FACTS, width=80)
    assert "40.0 %" in shown
    assert "█ raw estimate   [ ] 95 % interval" in shown


def test_a_line_shows_the_bar_its_interval_and_the_truth() -> None:
    bar = Bar("gas", 0.5, 0.3, 0.8, 1.0)
    (line,) = draw_bars([bar], cells=10)
    assert line == "  gas  ███[██──] ●   50.0 %  true 100.0 %"
    (line,) = draw_bars([Bar("gas", 0.5, 0.3, 1.0)], cells=10)
    assert line == "  gas  ███[██────]   50.0 %   30.0 … 100.0"


def test_an_estimate_of_nothing_has_no_bar() -> None:
    empty, full = draw_bars([Bar("a", 0.0, 0.0, 0.5), Bar("b", 1.0, 0.9, 1.0)], cells=10)
    assert "█" not in empty
    assert full.count("█") + 2 == 11, "two cells are brackets"


@pytest.mark.parametrize("width", [48, 60, 80, 200])
@pytest.mark.parametrize("ink", [UNICODE, ASCII])
def test_no_line_is_wider_than_the_terminal(width: int, ink: Ink) -> None:
    drawn = [x for x in plot_text(FACTS, width=width, ink=ink).splitlines() if "%  " in x]
    assert len(drawn) == 3
    widths = {len(line) + line.count("木") for line in drawn}
    assert len(widths) == 1, "aligned, also with letters that take two columns"
    assert max(widths) <= width
    assert max(widths) >= width - 1, "and the width is used"


def test_the_legend_tells_of_truth_only_where_it_is_known() -> None:
    assert "●" not in plot_text(FACTS, width=80)
    shown = plot_text(FACTS, width=80, true=[0.5, 0.3, 0.2])
    assert "● truth of the simulation" in shown
    assert "true  30.0 %" in shown


def test_withheld_says_so() -> None:
    few: ResultFacts = {**FACTS, "withheld": True, "histogram": [], "n": 12, "devices": 12}
    few["n_eff"] = 12.0
    shown = plot_text(few, width=80)
    assert shown.splitlines()[-1] == "  not enough reports: 12 of 200; withheld"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("encoding", "environ", "expected"),
    [
        ("utf-8", {}, Ink(colour=True)),
        ("UTF8", {"NO_COLOR": "1"}, UNICODE),
        ("iso8859-1", {"NO_COLOR": "1"}, ASCII),
        ("ascii", {}, Ink("#", "-", "o", "to", colour=True)),
    ],
)
def test_the_stream_decides(encoding: str, environ: dict[str, str], expected: Ink) -> None:
    terminal = Terminal()
    terminal.encoding = encoding
    assert ink_of(terminal, environ) == expected


def test_a_file_gets_no_colours_and_ascii_is_all_ascii() -> None:
    assert not ink_of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), {}).colour
    shown = plot_text(FACTS, width=80, ink=ASCII, true=[0.5, 0.3, 0.2])
    assert shown.isascii()
    assert "#" in shown


def test_colours_change_nothing_but_colours() -> None:
    plain = plot_text(FACTS, width=80)
    coloured = plot_text(FACTS, width=80, ink=Ink(colour=True))
    assert coloured != plain == re.sub(r"\x1b\[[0-9;]*m", "", coloured)


def test_estimate_draws(cli: Cli, data: Any, used: Campaign) -> None:
    shown = cli("estimate", "--data-dir", data, "--plot", "--attribute", "fuel")
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["wood", "gas", "oil", "pump"]
    assert "true" not in shown.stdout
    write_truth(data, used.name, {"fuel": [0.25] * 4})
    simulated = cli("estimate", "--data-dir", data, "--plot", "--attribute", "fuel").stdout
    assert simulated.count("true  25.0 %") == 4

"""Figures on the page, in files and in the terminal: they show what was estimated, and no more."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from collector import charts as drawing
from collector.charts import (
    AS_BEFORE,
    ASCII,
    BORDER,
    COLOURS,
    DARK_ON_LIGHT,
    MOST_BARS,
    MOST_PANELS,
    UNICODE,
    Bar,
    Chart,
    Ink,
    Line,
    charts,
    draw_bars,
    figure,
    html,
    ink_of,
    modules,
    plot_text,
    svg,
    terminal_code,
    unbroken,
    with_trend,
)
from collector.records import Campaign, Tally
from collector.results.display import headline, shares
from collector.results.facts import result_facts, write_truth
from collector.results.words import Facts
from collector.rounds.results import pooled_result, round_result
from protocol_spec import Result
from protocol_spec.programs.settings import SettingsError
from tests.support.collector import FIRST, FUEL, random_counts, three_questions
from tests.support.command_line import Cli, mistaken, read_code, squares_of

HOSTILE = '</title><script>alert("x")</script>&'


def asked(values: list[str], question: str = "What?") -> Campaign:
    listed = ", ".join(json.dumps(value) for value in values)
    table = f'[[attributes]]\nname = "a"\nquestion = {json.dumps(question)}\nvalues = [{listed}]\n'
    return Campaign(1, three_questions(min_reports=50, attributes=table), FIRST, None)


PLAIN = asked(["wood", "gas", "oil", "pump"])


def tally(campaign: Campaign, n: int, seed: int = 0) -> Tally:
    return Tally(n, random_counts(campaign.manifest.body_formats[FUEL], n, seed)[1])


def one(campaign: Campaign = PLAIN, n: int = 500) -> list[Result]:
    return [pooled_result(campaign, FUEL, 2, tally(campaign, 2 * n), ([2], [n]), {})]


def several(campaign: Campaign = PLAIN, sizes: tuple[int, ...] = (500,) * 6) -> list[Result]:
    made = [round_result(campaign, i, 0, tally(campaign, n, i), {}) for i, n in enumerate(sizes)]
    return one(campaign) + made


def parsed(made: list[Chart]) -> ET.Element:
    return ET.fromstring(svg(made, "A title"))  # noqa: S314 - our own file


def marks(root: ET.Element, kind: str) -> list[ET.Element]:
    return [element for element in root.iter() if element.get("class") == kind]


def number(element: ET.Element, name: str) -> float:
    return float((element.get(name) or "0").removesuffix("%"))


# --- bars -----------------------------------------------------------------------------------------


def test_bars_are_as_long_as_the_estimates() -> None:
    (result,) = one()
    root = parsed(charts(PLAIN, [result], None))
    lengths = [number(bar, "width") for bar in marks(root, "bar")]
    scale = max(lengths) / max(result.projected)
    assert lengths == pytest.approx([scale * share for share in result.projected], abs=0.02)
    spans = [(number(x, "x2") - number(x, "x1")) / scale for x in marks(root, "interval")[::3]]
    found = shares(result)
    wanted = [share.high - share.low for share in found]
    assert spans == pytest.approx(wanted, abs=0.03 / scale)
    text = "".join(root.itertext())
    assert f"{100 * found[0].value:.0f} % ({100 * found[0].low:.0f} … " in text
    assert headline(PLAIN.manifest, result)[:60] in text, "its result in a sentence"
    assert "2 rounds pooled, 1,000 reports of 500 devices" in text


def test_a_withheld_chart_has_no_bars_but_its_sentence() -> None:
    (chart,) = charts(PLAIN, one(n=20), None)
    assert (chart.bars, chart.note.endswith("withheld")) == ((), True)
    assert chart.sentence == "Not enough devices for a result: 20 of 50."
    assert not marks(parsed([chart]), "bar")


def test_the_page_has_the_marks_of_the_files() -> None:
    (result,) = one()
    listed = drawing.bar_list(drawing.bar_chart(PLAIN, result, None))
    inside = re.findall(r"<svg[^>]*>(.*?)</svg>", listed)
    assert len(inside) == 4
    assert all(part in svg(charts(PLAIN, [result], None), "") for part in inside)


# --- lines ----------------------------------------------------------------------------------------


def test_several_rounds_are_lines_with_bands_in_front_of_the_pooled_interval() -> None:
    results = several()
    (chart,) = charts(PLAIN, results, None)
    root = parsed([chart])
    assert len(marks(root, "line")) == len(marks(root, "band")) == len(marks(root, "pooled")) == 4
    assert all(len((x.get("points") or "").split()) == 6 for x in marks(root, "line"))
    assert not marks(root, "bar")
    assert "rounds 0 to 5, 500 reports each" in "".join(root.itertext())
    bands = [
        [float(c.split(",")[1]) for c in (x.get("points") or "").split()]
        for x in marks(root, "pooled-band")
    ]
    heights = [max(band) - min(band) for band in bands]
    spans = [share.high - share.low for share in shares(results[0])]
    scale = max(heights) / max(spans)
    assert heights == pytest.approx([scale * span for span in spans], abs=0.11)
    pooled = [line.pooled.value for line in chart.lines if line.pooled]
    assert pooled == pytest.approx([100 * share for share in results[0].projected])
    begins = datetime.fromtimestamp(PLAIN.manifest.rounds.first, UTC)
    assert chart.lines[0].dates[0] == begins.strftime("%d %b %H:%M")
    assert chart.lines[0].dates[0] in "".join(root.itertext())


def test_one_value_over_time_has_axes_and_tooltips() -> None:
    results = several()
    line = drawing.line(PLAIN, results[1:], results[0], 1, [0.25] * 4)
    drawn = drawing.over_time(line, "gas", "pooled")
    root = ET.fromstring(f"<div>{drawn}</div>")  # noqa: S314 - our own
    titles = [title.text or "" for title in root.iter("title")]
    assert len(titles) == 6
    assert f": {100 * results[6].projected[1]:.0f} % (" in titles[-1]
    assert titles[-1].startswith("round 5, ")
    plot = root[1]
    assert [len(marks(plot, kind)) for kind in ("pooled", "true", "dot")] == [1, 1, 6]
    numbers = [t.text for t in plot.iter("text") if (t.text or "").endswith(" %")]
    assert len(numbers) >= 3


def test_a_trend_of_a_mean_in_percent_is_not_taken_for_one_of_a_share() -> None:
    columns = {"value": [0.4, 0.5], "low_all": [0.25, 0.45], "high_all": [0.5, 0.75]}
    line = Line("mean", (), unit="%")
    for unit, scale in ((None, 100.0), ("%", 1.0)):
        drawn = with_trend(line, {"unit": unit, "curve": columns})
        assert drawn.trend[0] == pytest.approx((0.4 * scale, 0.25 * scale, 0.5 * scale))


def test_a_withheld_round_is_a_gap() -> None:
    (chart,) = charts(PLAIN, several(sizes=(500, 500, 20, 500, 20, 500)), None)
    runs = [[p.last for p in run] for run in unbroken(chart.lines[0].points)]
    assert runs == [[0, 1], [3], [5]]
    root = parsed([chart])
    assert len(marks(root, "line")) == 4
    assert len(marks(root, "dot")) == 4 * 2, "a round alone is a dot"


@pytest.mark.parametrize(("many", "most"), [(False, MOST_BARS), (True, MOST_PANELS)])
def test_the_largest_are_drawn_where_there_are_too_many(many: bool, most: int) -> None:
    campaign = asked([f"v{i}" for i in range(300)])
    results = several(campaign) if many else one(campaign)
    (chart,) = charts(campaign, results, None)
    drawn = {bar.name for bar in chart.bars} | {line.name for line in chart.lines}
    assert len(drawn) == most
    assert chart.caption.endswith(f"the {most} largest of 300 values")
    totals = {f"v{i}": sum(r.projected[i] for r in results[many:]) for i in range(300)}
    left_out = max(total for name, total in totals.items() if name not in drawn)
    assert min(totals[name] for name in drawn) >= left_out


# --- files ----------------------------------------------------------------------------------------


def test_a_page_runs_and_loads_nothing_and_escapes_everything() -> None:
    campaign = asked([HOSTILE, "b"], HOSTILE)
    for results in (one(campaign), several(campaign)):
        text = html(charts(campaign, results, None), HOSTILE)
        tags = set(re.findall(r"<([a-z]+)", text))
        assert not {"script", "link", "img", "iframe", "object"} & tags
        assert {"svg", "table", "caption"} <= tags
        assert not re.search(r"\b(src|href)=", text)
        assert '<html lang="en">' in text
        assert "default-src 'none'; style-src 'unsafe-inline'" in text
        ET.fromstring(svg(charts(campaign, results, None), HOSTILE))  # noqa: S314 - our own file
        known = {colour for pair in COLOURS.values() for colour in pair}
        assert set(re.findall("#[0-9a-f]{3,6}", text)) <= known


@pytest.mark.parametrize("ending", [".svg", ".html", ".png"])
@pytest.mark.parametrize("results", [one(), several()], ids=["bars", "lines"])
def test_the_same_results_give_the_same_bytes(ending: str, results: list[Result]) -> None:
    truth = {"a": [0.25] * 4}
    first, second = (figure(PLAIN, results, truth, Path("x" + ending)) for _ in range(2))
    assert first == second
    assert first.startswith({".svg": b"<svg ", ".html": b"<!doctype html>"}.get(ending, b"\x89PNG"))


def test_export_draws(cli: Cli, data: Path, home: Path, used: Campaign) -> None:
    words: list[Any] = ["export", "--data-dir", data, "--round", "pooled"]
    drawn = cli(*words, "--figure", home / "heat.svg")
    assert (drawn.exit_code, drawn.stdout) == (0, "")
    assert f"wrote {home / 'heat.svg'}" in drawn.stderr
    titles = marks(ET.parse(home / "heat.svg").getroot(), "title")  # noqa: S314 - our own file
    assert [t.text for t in titles] == [a.question for a in used.manifest.attributes]
    both = cli(*words, "--figure", home / "heat.html", "--output", home / "heat.csv")
    assert both.exit_code == 0
    assert (home / "heat.html").exists()
    assert (home / "heat.csv").read_text().startswith("campaign,")


def test_figures_that_cannot_be_drawn(cli: Cli, data: Path, file: Path, home: Path) -> None:
    assert cli("open", file, "--data-dir", data).exit_code == 0
    assert "no round is sealed yet" in mistaken(cli, 1, "estimate", "--data-dir", data)
    words = ("export", "--data-dir", data, "--figure")
    error = mistaken(cli, 1, *words, home / "heat.svg")
    assert "no round is sealed yet; nothing was written" in error
    assert not (home / "heat.svg").exists()
    with pytest.raises(SettingsError, match=r"must end in .svg, .png or .html; nothing was"):
        figure(PLAIN, one(), None, Path("x.pdf"))


# --- the terminal ---------------------------------------------------------------------------------

WIDE = asked(["gas", "heat pump", "木" * 40])
FACTS: Facts = result_facts(WIDE, one(WIDE)[0], None)


def test_a_line_shows_the_bar_its_interval_and_the_truth() -> None:
    (line,) = draw_bars([Bar("gas", 0.5, 0.3, 0.8, 1.0)], cells=10)
    assert line == "  gas  ███[██──] ●   50.0 %  true 100.0 %"
    (line,) = draw_bars([Bar("gas", 0.5, 0.3, 1.0)], cells=10)
    assert line == "  gas  ███[██────]   50.0 %   30.0 … 100.0"


@pytest.mark.parametrize("width", [48, 200])
@pytest.mark.parametrize("ink", [UNICODE, ASCII])
def test_no_line_is_wider_than_the_terminal(width: int, ink: Ink) -> None:
    drawn = [x for x in plot_text(FACTS, width=width, ink=ink).splitlines() if "%  " in x]
    assert len(drawn) == 3
    widths = {len(line) + line.count("木") for line in drawn}
    assert len(widths) == 1, "aligned, also with letters that take two columns"
    assert width - 1 <= max(widths) <= width, "and the width is used"


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
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert ink_of(terminal, environ) == replace(expected, colour=False), "a file"
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    assert ink_of(terminal, environ) == expected


def test_ascii_is_all_ascii_and_colours_change_nothing_else() -> None:
    shown = plot_text(FACTS, width=80, ink=ASCII, true=[0.5, 0.3, 0.2])
    assert shown.isascii()
    assert "#" in shown
    plain = plot_text(FACTS, width=80)
    coloured = plot_text(FACTS, width=80, ink=Ink(colour=True))
    assert coloured != plain == re.sub(r"\x1b\[[0-9;]*m", "", coloured)


def test_estimate_draws(cli: Cli, data: Any, used: Campaign) -> None:
    shown = cli("estimate", "--data-dir", data, "--plot", "--attribute", "fuel")
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert lines[1].startswith("  Too few reports to rank the answers")
    assert [line.split()[0] for line in lines[3:7]] == ["wood", "gas", "oil", "pump"]
    assert "true" not in shown.stdout
    write_truth(data, used.name, {"fuel": [0.25] * 4})
    simulated = cli("estimate", "--data-dir", data, "--plot", "--attribute", "fuel").stdout
    assert simulated.count("true  25 %") == 4


# --- QR codes, read back by a decoder that shares no code with the encoder ------------------------

LINK = f"mqtts://broker.example:8883/allomfree/home-heat-{'0123456789abcdef' * 4}"
LONGEST = f"mqtts://{'b' * 63}.{'c' * 63}.example:65535/{'n' * 32}/{'s' * 32}-{'f' * 64}"


@pytest.mark.parametrize("link", [LINK, LONGEST, "mqtts://b/n/s-12345678"])
def test_a_decoder_reads_the_link(link: str) -> None:
    squares = modules(link)
    assert read_code(squares) == link
    quiet = [*squares[:BORDER], *squares[-BORDER:], *([row[:BORDER] for row in squares])]
    assert not any(any(row) for row in quiet), "the white around it"


def test_a_terminal_shows_black_on_white_whatever_its_colours() -> None:
    lines = terminal_code(LINK, colours=True).split("\n")
    assert all(line.startswith(DARK_ON_LIGHT) and line.endswith(AS_BEFORE) for line in lines)
    bare = [line.removeprefix(DARK_ON_LIGHT).removesuffix(AS_BEFORE) for line in lines]
    assert read_code(squares_of(bare)) == LINK
    assert max(map(len, bare)) <= 80, "it fits a terminal"
    assert len(bare) <= 40
    assert terminal_code(LINK, colours=False).split("\n") == bare

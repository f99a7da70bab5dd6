"""Figures: sound files that fetch nothing, show what was estimated, and are the same each time."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import asdict, replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from collector.charts import (
    DARK,
    LIGHT,
    MOST_BARS,
    MOST_PANELS,
    Chart,
    charts,
    figure,
    html,
    svg,
    unbroken,
)
from collector.errors import CollectorError
from collector.records import Campaign, Tally
from collector.rounds.results import pooled_result, round_result
from protocol_spec import Result
from protocol_spec.programs.settings import SettingsError
from tests.support.collector_cli import data, file, mistaken, used
from tests.support.collector_fakes import FIRST, FUEL, random_counts, three_questions
from tests.support.command_line import Cli
from tests.support.places import ROOT

__all__ = ["data", "file", "used"]  # fixtures

HOSTILE = '</title><script>alert("x")</script>&'
SVG = "{http://www.w3.org/2000/svg}"


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


def test_bars_are_as_long_as_the_estimates() -> None:
    (result,) = one()
    root = parsed(charts(PLAIN, [result], None))
    lengths = [float(bar.get("width") or 0) for bar in marks(root, "bar")]
    scale = max(lengths) / max(map(abs, result.raw))
    assert lengths == pytest.approx([scale * abs(share) for share in result.raw], abs=0.06)
    spans = [
        (float(x.get("x2") or 0) - float(x.get("x1") or 0)) / scale
        for x in marks(root, "interval")[::3]
    ]
    assert spans == pytest.approx(
        [h - low for low, h in zip(result.low, result.high)], abs=0.11 / scale
    )
    text = "".join(root.itertext())
    assert f"{100 * result.raw[0]:.1f} % ({100 * result.low[0]:.1f} … " in text
    assert "2 rounds pooled, 1,000 reports of 500 devices" in text


def test_several_rounds_are_a_line_with_a_band_for_each_value() -> None:
    root = parsed(charts(PLAIN, several(), None))
    assert len(marks(root, "line")) == len(marks(root, "band")) == 4
    assert all(len((x.get("points") or "").split()) == 6 for x in marks(root, "line"))
    assert not marks(root, "bar")
    assert "rounds 0 to 5, 500 reports each" in "".join(root.itertext())


def test_rounds_stand_before_the_pooled_interval_between_dates() -> None:
    results = several()
    root = parsed(charts(PLAIN, results, None))
    bands = [float(x.get("height") or 0) for x in marks(root, "pooled-band")]
    (chart,) = charts(PLAIN, results, None)
    spans = [high - low for low, high in zip(results[0].low, results[0].high)]
    scale = max(bands) / max(spans)
    assert bands == pytest.approx([scale * span for span in spans], abs=0.06)
    assert len(marks(root, "pooled")) == 4
    assert [s.pooled.share for s in chart.series if s.pooled] == list(results[0].raw)
    rounds = PLAIN.manifest.rounds
    begins = datetime.fromtimestamp(rounds.first + rounds.period // 2, UTC)
    assert chart.dates[0] == begins.strftime("%d %b %H:%M")
    assert chart.dates[0] in "".join(root.itertext())


def test_a_bar_below_zero_goes_to_the_left() -> None:
    (result,) = one()
    below = replace(result, raw=(-0.1, *result.raw[1:]))
    root = parsed(charts(PLAIN, [below], None))
    zero = float(marks(root, "axis")[0].get("x1") or 0)
    first, *others = (
        (float(b.get("x") or 0), float(b.get("width") or 0)) for b in marks(root, "bar")
    )
    assert sum(first) == pytest.approx(zero, abs=0.2)
    assert first[1] > 0
    assert all(x == pytest.approx(zero, abs=0.06) for x, _ in others)
    assert "-10.0 % (" in "".join(root.itertext())


def test_figures_have_the_colours_of_the_page() -> None:
    css = (ROOT / "collector/web/static/page.css").read_text(encoding="utf-8")
    day, night = css.split("@media (prefers-color-scheme: dark)")[:2]
    for part, palette in ((day, LIGHT), (night, DARK)):
        told = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", part))
        assert {name: told[name] for name in palette.__slots__} == asdict(palette)
    drawn = svg(charts(PLAIN, several(), None), "A title") + html(charts(PLAIN, one(), None), "b")
    known = {*asdict(LIGHT).values(), *asdict(DARK).values()}
    assert set(re.findall("#[0-9a-f]{3,6}", drawn)) <= known


def test_a_withheld_round_is_a_gap() -> None:
    (chart,) = charts(PLAIN, several(sizes=(500, 500, 20, 500, 20, 500)), None)
    runs = [[p.round for p in run] for run in unbroken(chart.series[0].points)]
    assert runs == [[0, 1], [3], [5]]
    assert len(marks(parsed([chart]), "line")) == 4 * 3


def test_withheld_altogether_says_so() -> None:
    (chart,) = charts(PLAIN, one(n=20), None)
    assert (chart.series, chart.note.endswith("too few reports, withheld")) == ((), True)
    assert not marks(parsed([chart]), "bar")


@pytest.mark.parametrize("results", [one(), several()], ids=["bars", "lines"])
def test_the_truth_of_a_simulation_is_dotted(results: list[Result]) -> None:
    truth = {"a": [0.1, 0.2, 0.3, 0.4]}
    assert len(marks(parsed(charts(PLAIN, results, truth)), "true")) == 4
    assert not marks(parsed(charts(PLAIN, results, None)), "true")


@pytest.mark.parametrize(("many", "most"), [(False, MOST_BARS), (True, MOST_PANELS)])
def test_the_largest_are_drawn_where_there_are_too_many(many: bool, most: int) -> None:
    campaign = asked([f"v{i}" for i in range(300)])
    results = several(campaign) if many else one(campaign)
    (chart,) = charts(campaign, results, None)
    assert len(chart.series) == most
    assert chart.caption.endswith(f"the {most} largest of 300 values")
    drawn = {s.name for s in chart.series}
    totals = {f"v{i}": sum(r.raw[i] for r in results[many:]) for i in range(300)}
    left_out = max(total for name, total in totals.items() if name not in drawn)
    assert min(totals[name] for name in drawn) >= left_out


# --- files ---------------------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_page_needs_and_runs_nothing_and_escapes_everything() -> None:
    campaign = asked([HOSTILE, "b"], HOSTILE)
    text = html(charts(campaign, one(campaign), None), HOSTILE)
    page = Page()
    page.feed(text)
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert {"svg", "table", "caption"} <= set(tags)
    assert not [a for _, attributes in page.tags for a in attributes if a in ("src", "href")]
    assert ("html", {"lang": "en"}) in page.tags
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    ET.fromstring(svg(charts(campaign, one(campaign), None), HOSTILE))  # noqa: S314 - our own file


@pytest.mark.parametrize("ending", [".svg", ".html", ".png"])
@pytest.mark.parametrize("results", [one(), several()], ids=["bars", "lines"])
def test_the_same_results_give_the_same_bytes(ending: str, results: list[Result]) -> None:
    if ending == ".png":
        pytest.importorskip("matplotlib")
    truth = {"a": [0.25] * 4}
    first, second = (figure(PLAIN, results, truth, Path("x" + ending)) for _ in range(2))
    assert first == second
    assert first.startswith({".svg": b"<svg ", ".html": b"<!doctype html>"}.get(ending, b"\x89PNG"))


def test_a_png_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CollectorError, match="pip install matplotlib"):
        figure(PLAIN, one(), None, Path("x.png"))


def test_another_ending_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"must end in .svg, .png or .html; nothing was"):
        figure(PLAIN, one(), None, Path("x.pdf"))


@pytest.mark.parametrize("ending", [".svg", ".html", ".png"])
def test_before_a_round_is_sealed_there_is_nothing_to_draw(
    cli: Cli,
    data: Path,
    file: Path,
    home: Path,
    ending: str,
) -> None:
    assert cli("open", file, "--data-dir", data).exit_code == 0
    picture = home / f"heat{ending}"
    told = mistaken(cli, 1, "export", "--data-dir", data, "--figure", picture)
    assert "no round is sealed yet; nothing was written" in told
    assert not picture.exists()


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
    told = mistaken(cli, 2, *words, "--figure", home / "no" / "such.svg")
    assert "--figure" in told
    assert "cannot be written: No such file or directory" in told

"""Figures as files: the ending of the name chooses SVG, HTML or PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from collector.errors import CollectorError
from collector.records import Campaign
from collector.show.charts import Chart, charts
from collector.show.html import html
from collector.show.png import png
from collector.show.svg import svg
from protocol_spec import Result
from protocol_spec.programs.errors import SettingsError


def figure(
    campaign: Campaign,
    results: Sequence[Result],
    truth: Mapping[str, Sequence[float]] | None,
    path: Path,
) -> bytes:
    """The file's content; its kind is that of the path's ending."""
    kinds: dict[str, Callable[[Sequence[Chart], str], bytes]] = {
        ".svg": lambda made, title: svg(made, title).encode(),
        ".html": lambda made, title: html(made, title).encode(),
        ".png": png,
    }
    if path.suffix not in kinds:
        raise SettingsError(
            f"--figure {path}: the name must end in .svg, .png or .html; nothing was written"
        )
    if not results:
        raise CollectorError(
            f"{campaign.name}: no round is sealed yet; nothing was written. "
            "See allomfree-collector status"
        )
    title = f"{campaign.manifest.title} ({campaign.name})"
    return kinds[path.suffix](charts(campaign, results, truth), title)

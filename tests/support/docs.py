"""Reading the pages: tables, sections, fenced blocks, links, and the commands they show."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from protocol_spec import Calibration, as_drawn, calibrate
from tests.support.places import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])
GUIDE = ROOT / "docs/operator-guide.md"
RESULTS = ROOT / "docs/results.md"
PRIVACY = ROOT / "docs/privacy.md"
DASHBOARDS = ROOT / "docs/dashboards.md"
COLLECTOR_SETTINGS = ROOT / "docs/collector-settings.md"
SECURITY = ROOT / "docs/security.md"
EDGE_SETTINGS = ROOT / "docs/settings.md"
OWNERS_PAGE = ROOT / "docs/raspberry-pi.md"
PYTHON_API = ROOT / "docs/python-api.md"
COLLECTOR_EXAMPLE = ROOT / "deploy/collector.toml.example"
EDGE_EXAMPLE = ROOT / "deploy/edge.toml.example"


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def rows(text: str) -> list[list[str]]:
    """The cells of every table row of a page."""
    lines = (line.strip() for line in text.splitlines())
    return [[c.strip() for c in x.strip("|").split("|")] for x in lines if x.startswith("|")]


def row_with(text: str, cell: str) -> list[str]:
    """The one row of a text that has this cell."""
    found = [row for row in rows(text) if cell in row]
    assert len(found) == 1, f"{cell} has {len(found)} rows"
    return found[0]


def names_in(text: str) -> list[str]:
    """First cells of a table that are code, without their back quotes."""
    return [row[0].strip("`") for row in rows(text) if row[0].startswith("`")]


def section(page: Path, heading: str) -> str:
    """What stands below a heading that begins so, up to the next one of any level."""
    found = re.split(rf"(?m)^{re.escape(heading)}(?:$|[^\w].*$)", read(page), maxsplit=1)
    assert len(found) == 2, f"{name_of(page)} has no {heading}"
    return re.split(r"\n#+ ", found[1], maxsplit=1)[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shown(value: object) -> str:
    """A default as the pages write it."""
    if type(value) is tuple:  # not an address, which is one with names
        return f"`{json.dumps(list(value))}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def commands_shown(program: str) -> Iterator[tuple[str, list[str]]]:
    """Every use of a program in a console block: the page, and the words after its name."""
    for page in PAGES:
        for block in blocks(read(page), "console"):
            for line in block.splitlines():
                if line.startswith("$ ") and f"{program} " in line:
                    words = shlex.split(re.split(r" [|>&]", line[2:])[0])
                    places = [i for i, word in enumerate(words) if Path(word).name == program]
                    if places and words[0] != "systemctl":
                        yield name_of(page), words[places[-1] + 1 :]


def without_code(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", read(page))


def anchors(page: Path) -> set[str]:
    """The names GitHub gives to a page's headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", without_code(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


BUDGET = re.compile(r"`eps_inf` ([\d.]+), `eps_1` ([\d.]+), (\d+) values \((L-\w+)\)")


def budgets(page: Path, heading: str) -> list[tuple[float, Calibration, list[str]]]:
    """Rows that begin with a budget: eps_inf, the noise as devices draw it, the other cells."""
    found = []
    for row in rows(section(page, heading)):
        told = BUDGET.fullmatch(row[0])
        if told:
            eps_inf, eps_1, k = float(told[1]), float(told[2]), int(told[3])
            noise = as_drawn(calibrate("ALLOMFREE", k=k, eps_inf=eps_inf, eps_1=eps_1))
            assert noise.protocol == told[4]
            found.append((eps_inf, noise, row[1:]))
    assert found, f"{name_of(page)} has no budgets below {heading}"
    return found

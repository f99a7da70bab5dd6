"""Reading `protocol_spec/README.md`: its tables, fences and examples."""

from __future__ import annotations

import re

from protocol_spec import Manifest
from tests.support.harness import ROOT

FOLDER = ROOT / "protocol_spec"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
DEVICE = "k7f3-0b2q"


def rows(*header: str) -> list[list[str]]:
    """The cells of the one table with that header."""
    [table] = re.findall(
        rf"^\| {re.escape(' | '.join(header))} \|\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.M
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def fence(info: str) -> str:
    [inside] = re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", TEXT, re.M | re.S)
    return str(inside)


def hex_of(name: str) -> bytes:
    """An example: hex pairs at the start of each line, a remark after three blanks."""
    lines = fence(f"hex {name}").splitlines()
    return b"".join(bytes.fromhex(line.split("   ")[0]) for line in lines)


def bare(cell: str) -> str:
    return cell.strip("`")


MANIFEST = Manifest.from_toml(fence("toml"))

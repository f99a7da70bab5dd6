"""What lies between two markers of a document belongs to the generator, the rest to its author."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

Blocks = Mapping[str, Callable[[str], str]]


class SpecificationError(Exception):
    """The code has something that the documents do not explain, or the other way round."""


# In Markdown and in YAML; a block keeps the indentation of its marker.
_BLOCK = re.compile(
    r"(?P<begin>^(?P<indent>[ ]*)(?:<!--|#) generated: (?P<name>[\w ]+?)(?: -->)?\n)"
    r"(?P<inside>.*?)"
    r"(?P<end>^[ ]*(?:<!--|#) end of (?P=name)(?: -->)?$)",
    re.M | re.S,
)


def renewed(text: str, blocks: Blocks) -> str:
    """The document with every block made anew, each from what it held before."""
    found = [match["name"] for match in _BLOCK.finditer(text)]
    if sorted(found) != sorted(blocks):
        different = sorted(set(found) ^ set(blocks)) or "one is there twice"
        raise SpecificationError(f"markers and generated blocks do not agree: {different}")

    def renew(match: re.Match[str]) -> str:
        made = blocks[match["name"]](match["inside"]).rstrip("\n")
        lines = [match["indent"] + line if line else "" for line in made.split("\n")]
        return match["begin"] + "\n".join(lines) + "\n" + match["end"]

    return _BLOCK.sub(renew, text)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines])


def written(inside: str) -> dict[str, str]:
    """The last cell of each row of a table, which an author wrote, by the first."""
    rows = [line.strip().strip("|").split("|") for line in inside.splitlines() if "|" in line]
    return {row[0].strip(): row[-1].strip() for row in rows}


def explained(words: Mapping[str, str], key: str) -> str:
    """The author's words for a row; a row that was never written is an error that names it."""
    found = words.get(key, "")
    if not found:
        raise SpecificationError(
            f"{key} is not explained: add its row, with words in the last cell"
        )
    return found

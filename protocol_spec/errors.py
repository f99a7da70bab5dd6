r"""Everything that can be refused, in one tree; and foreign text as people may safely see it (A10).

AllomfreeError
├── ParameterError (ValueError)     a number the mathematics cannot use; the caller fixes it
│   └── InfeasibleBudget            the protocol cannot reach that eps_1; carries the largest it can
├── ManifestError (ValueError)      a campaign's manifest is not acceptable; its author fixes it
└── UnknownValue (ValueError)       a device's value is outside the domain; its owner fixes it

A bad message from the network is not an exception but data: see `protocol_spec.outcomes`.

Foreign text (a manifest, a topic, a file, a broker's reason) may hold characters that clear a
screen, fill a clipboard, reverse a line, or are invisible. They are shown by their numbers, as in
\u{1b}. `CONTROLS` and `INVISIBLE` list them by number, so that every implementation means the same.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final

# Controls, line separators, direction overrides and lone surrogates: what could hide or disguise
# text on a terminal.
CONTROLS: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
# What Unicode 15 calls default ignorable: direction marks, zero-width characters, fillers,
# variation selectors, tags. They are invisible, and make texts differ that look the same. Then
# blanks of Braille, annotations and other format controls, private use, and noncharacters, whose
# looks are undefined.
INVISIBLE: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u2800\u3164"
    "\ue000-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff"
)
LONGEST: Final = 200

_BOUNDED: Final = reprlib.Repr()  # of depth and length: what is hostile must not fill the stack
_BOUNDED.maxstring = 160
_BOUNDED.maxlevel = 3
_MOST_ITEMS: Final = 8  # of a list
_ASCII_CONTROLS: Final = re.compile("[\x00-\x1f\x7f]")
_NOTHING: Final = re.compile("(?!)")


def pattern_for(text: str, characters: str = CONTROLS + INVISIBLE) -> re.Pattern[str]:
    """The pattern that finds these characters in this text. Most text is ASCII and needs a short
    one; the long ones take milliseconds to compile, when first needed."""
    if text.isascii():
        return _ASCII_CONTROLS if characters.startswith(CONTROLS) else _NOTHING
    return _long_pattern(characters)


@cache
def _long_pattern(characters: str) -> re.Pattern[str]:
    return re.compile(f"[{characters}]")


def escaped(text: str) -> str:
    """The text with every control or invisible character as its number."""
    return pattern_for(text).sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def short(text: str, longest: int = LONGEST) -> str:
    """At most `longest` characters of a text, and how many more there are."""
    more = len(text) - longest
    return text if more <= 0 else f"{text[:longest]}… ({more:,} more)"


def shown(foreign: object, longest: int = LONGEST) -> str:
    """Foreign text, for a message to people; at most that long when escaped."""
    text, pieces, room = str(foreign), [], longest
    if not pattern_for(text[:longest]).search(text[:longest]):
        return short(text, longest)  # as nearly all text: nothing to escape
    for piece in map(escaped, text):
        room -= len(piece)
        if room < 0:
            break
        pieces.append(piece)
    return short("".join(pieces) + text[len(pieces) :], sum(map(len, pieces)))


def quoted(foreign: object, longest: int = LONGEST) -> str:
    """The same in quotation marks; anything else than text abridged."""
    if isinstance(foreign, str):
        return f"'{shown(foreign, longest)}'"
    try:
        return shown(foreign if isinstance(foreign, datetime) else _BOUNDED.repr(foreign), longest)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of very many digits"


def as_toml(foreign: object, longest: int = LONGEST) -> str:
    """A value as its author would write it in TOML, abridged."""
    return short(_as_toml(foreign, 3, longest), longest)


def _as_toml(foreign: object, depth: int, longest: int) -> str:
    match foreign:
        case str():
            text = f'"{shown(foreign, longest)}"'
        case bool():
            text = str(foreign).lower()
        case bytes():
            text = f'"{foreign[:longest].hex()}"'
        case datetime():
            text = foreign.isoformat().replace("+00:00", "Z")
        case list() | tuple() if depth == 0:
            text = "[…]"
        case list() | tuple():
            items = [_as_toml(item, depth - 1, longest) for item in foreign[:_MOST_ITEMS]]
            text = f"[{', '.join(items)}{', …' if len(foreign) > _MOST_ITEMS else ''}]"
        case dict():
            text = "{…}"
        case _:
            text = quoted(foreign, longest)
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of the known names the author may have meant, as a question; empty if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - 0.3 MB, for errors only

    candidates = list(known)
    for written in dict.fromkeys((name[:80].lower(), name[:80])):
        near = get_close_matches(written, candidates, 1)
        if near:
            return f'; did you mean "{near[0]}"?'
    return ""


# --- errors ---------------------------------------------------------------------------------------


MOST_SHOWN = 12  # problems of one manifest in a message; its author fixes these and sees the rest


class AllomfreeError(Exception):
    """Base of every error that a caller or a user can do something about."""


class ParameterError(AllomfreeError, ValueError):
    """A parameter is outside the range for which the protocol is defined."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {quoted(value, 160)}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class InfeasibleBudget(ParameterError):
    """The protocol's fixed p2 = 1/2 keeps a single report below the eps_1 asked for."""

    def __init__(self, protocol: str, eps_inf: float, eps_1: float, largest: float) -> None:
        super().__init__(
            "eps_1",
            eps_1,
            f"{protocol} with eps_inf = {eps_inf!r} reaches at most eps_1 = {largest!r}; "
            "ask for that or less, or choose L-OSUE, which reaches every eps_1 below eps_inf",
        )
        self.largest = largest


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a manifest: where, what was found, and what would be right.

    The value is None where nothing was found.
    """

    field: str
    value: object
    remedy: str

    def __str__(self) -> str:
        found = "" if self.value is None else f" = {as_toml(self.value, 160)}"
        return f"{shown(self.field, 80)}{found}: {shown(self.remedy, 400)}"


class ManifestError(AllomfreeError, ValueError):
    """A manifest is refused; `problems` lists every reason found, not only the first.

    `file` is where it was read from, if it was a file.
    """

    def __init__(self, problems: Sequence[Problem], file: str = "") -> None:
        where = f"{shown(file)}: " if file else ""
        first = [f"{where}{problem}" for problem in problems[:MOST_SHOWN]]
        more = len(problems) - len(first)
        super().__init__("\n".join([*first, *([f"and {more:,} more problems"] if more else [])]))
        self.problems = tuple(problems)


class UnknownValue(AllomfreeError, ValueError):
    """A value is not one of the attribute's. The value itself is private and never shown."""

    def __init__(self, attribute: str, remedy: str) -> None:
        super().__init__(f"attribute {quoted(attribute)}: {remedy}")
        self.attribute = attribute
        self.remedy = remedy

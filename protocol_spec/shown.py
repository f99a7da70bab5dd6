r"""Foreign text as people may safely see it: escaped, and short (A10).

Whatever somebody else wrote (a manifest, a topic, a file, a broker's reason) may hold characters
that clear a screen, fill a clipboard, reverse a line, or are not seen at all. They are shown by
their numbers, as in \u{1b}. `CONTROLS` and `INVISIBLE` list them by number, so that every
implementation means the same.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Final

__all__ = [
    "CONTROLS",
    "INVISIBLE",
    "as_toml",
    "escaped",
    "nearest",
    "pattern_for",
    "quoted",
    "short",
    "shown",
]

# Controls, line separators, direction overrides and lone surrogates: what could hide or disguise
# text on a terminal.
CONTROLS: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
# What Unicode 15 calls default ignorable: direction marks, zero-width characters, fillers,
# variation selectors, tags. They are not seen, and make texts differ that look the same. Then
# blanks of Braille, annotations and other format controls, private use, and what is no character
# at all: how they look is anybody's guess.
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
    """What finds the characters of a list in a text. Most text is ASCII and needs a short one; the
    long ones take milliseconds to make, and are made when first needed."""
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
    """Somebody else's text, for a message to people; escaped, it still is that short."""
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
    """The same in quotation marks; of anything else than text, as far as it is worth reading."""
    if isinstance(foreign, str):
        return f"'{shown(foreign, longest)}'"
    try:
        return shown(foreign if isinstance(foreign, datetime) else _BOUNDED.repr(foreign), longest)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of very many digits"


def as_toml(foreign: object, longest: int = LONGEST) -> str:
    """A value as its author would write it in TOML, as far as it is worth reading."""
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
        case list() | tuple():
            text = _list_as_toml(foreign, depth, longest)
        case dict():
            text = "{…}"
        case _:
            text = quoted(foreign, longest)
    return text


def _list_as_toml(items: list[object] | tuple[object, ...], depth: int, longest: int) -> str:
    if depth == 0:
        return "[…]"
    told = (_as_toml(item, depth - 1, longest) for item in items[:_MOST_ITEMS])
    return f"[{', '.join(told)}{', …' if len(items) > _MOST_ITEMS else ''}]"


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of the known names somebody may have meant, as a question; nothing if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - 0.3 MB that a sound manifest spares

    candidates = list(known)
    for written in dict.fromkeys((name[:80].lower(), name[:80])):
        near = get_close_matches(written, candidates, 1)
        if near:
            return f'; did you mean "{near[0]}"?'
    return ""

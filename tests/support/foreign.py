"""Text that somebody else wrote to deceive: for every test of what reaches a terminal (A10)."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Final

ESCAPES: Final = (
    "\x1b]52;c;ZXZpbA==\x07",  # fills the clipboard
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1bP+q544e\x1b\\",  # asks the terminal, which types the answer
    "\x9b2J",  # the same as the second, in one character
    "ok\r\x08\x08\x7f",  # overwrites what stood before
    "\u202eevil\u202c",  # right to left
    "\u2066a\u2069\u200f",
    "a\u200bb\u2060\ufeff",  # not seen at all
    "a\U000e0041\U000e007f",  # tags
    "a\u2028b\u0085c",  # other line ends
)
LONG: Final = "x" * 100_000
HOSTILE: Final = (*ESCAPES, LONG, "\x1b[2J" * 20_000)

# As the Unicode database has it, not as the product's list does: controls, formats, surrogates,
# line and paragraph separators.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def hidden_in(text: str) -> set[str]:
    """Characters that must not reach a terminal."""
    return {c for c in text if unicodedata.category(c) in _HIDDEN} - {"\n", "\t"}


@cache
def toml(text: str) -> str:
    """A TOML string or key that holds exactly this."""
    special = {c for c in text if c in '"\\' or (unicodedata.category(c) == "Cc")}
    return '"' + "".join(f"\\u{ord(c):04x}" if c in special else c for c in text) + '"'

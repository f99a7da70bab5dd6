"""Values that are rarely right: for whatever reads messages, names or numbers."""

from __future__ import annotations

import math
from typing import Any

ODDITIES: list[Any] = [None, False, True, -1, 0, 1, 2, 3, 4, 126, 127, 128, 255, 256]
ODDITIES += [65_534, 65_535, 65_536, 65_537, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1]
ODDITIES += [-1.0, 0.0, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf, "", "1", "x" * 8, "x" * 32]
ODDITIES += ["model", "Model", "x" * 33, "L-GRR", "auto", "exact", b"", b"\x01", b"\0\0\0\1"]
ODDITIES += [bytes(4), bytes(7), bytes(8), bytes(9), b"\0\0\0\1\0\0\0\2", b"\0\0\0\2\0\0\0\1"]
ODDITIES += [
    bytes(31),
    bytes(32),
    bytes(33),
    bytes(512),
    bytes(513),
    bytes(514),
    [],
    [1],
    {},
    {"a": 1},
]

# Levels of topics, and other names.
LEVELS = ["", "a", "0", "-", "_", "A", "é", "a b", "a/b", "a\n", "a-", "-a", "a-b", "a_", "a_b"]
LEVELS += ["a+", "#", "7", "07", "12345", "99999", "123456", "-1", "a" * 31, "0" * 32, "a" * 32]
LEVELS += ["a" * 33, "a" * 64, "a" * 65, "a-0123abcd", "-0123abcd", "a-0123ABCD", "a-0123abc"]
LEVELS += ["a" * 32 + "-0123abcd", "a" * 33 + "-0123abcd", "a--0123abcd", "a_b-0123abcd"]

"""Ways of reporting besides the paper's memo per value: for values that change, and for the rest.

    once.py     one round for life: a hard bound for a whole history, whatever changes
    hashed.py   LOLOHA with two cells: every round, whatever changes; changes themselves show
    nested.py   gradual release: for values that do not change, when rounds are pooled

Each has its calibration, the integers a device draws with, its randomiser, and what it costs. None
needs numpy; estimating from their counts is in `protocol_spec.estimation`.
"""

from protocol_spec.reporting.hashed import (
    LOLOHA,
    Hashed,
    HashedRandomiser,
    change_log_ratio,
    code,
    support,
)
from protocol_spec.reporting.nested import (
    NESTABLE,
    Nested,
    NestedRandomiser,
    gradual_levels,
    nested_thresholds,
)
from protocol_spec.reporting.once import Once, OnceRandomiser, better_once, draw_rounds

__all__ = [
    "LOLOHA",
    "NESTABLE",
    "Hashed",
    "HashedRandomiser",
    "Nested",
    "NestedRandomiser",
    "Once",
    "OnceRandomiser",
    "better_once",
    "change_log_ratio",
    "code",
    "draw_rounds",
    "gradual_levels",
    "nested_thresholds",
    "support",
]

"""How one question is answered: the mechanisms, each in one file with both sides.

    memoized   the paper: a memo of each value for life, fresh noise over it in every round
    once       the device draws its round(s) at joining and answers in no other
    hashed     the value's cell instead of the value: at most two memos, whatever changes
    nested     all reports of the value are drawn at once, and each discloses a little more

`base.py` says what each offers. To add one: its file, its name in `Reporting` and in `MECHANISMS`,
its documentation, tests and vectors. None needs numpy; estimating from counts is in `estimation`.
"""

from typing import Final

from protocol_spec.attributes import Attribute
from protocol_spec.mechanisms.base import (
    Budget,
    Channel,
    Mechanism,
    Reporting,
    Rules,
    Support,
)
from protocol_spec.mechanisms.hashed import (
    LOLOHA,
    Hashed,
    HashedRandomiser,
    change_log_ratio,
    code,
    support,
)
from protocol_spec.mechanisms.memoized import Memoized
from protocol_spec.mechanisms.nested import (
    Nested,
    NestedRandomiser,
    default_levels,
    gradual_levels,
    nested_thresholds,
)
from protocol_spec.mechanisms.once import Once, OnceRandomiser, better_once, draw_rounds

__all__ = [
    "LOLOHA",
    "MECHANISMS",
    "Budget",
    "Channel",
    "Hashed",
    "HashedRandomiser",
    "Mechanism",
    "Memoized",
    "Nested",
    "NestedRandomiser",
    "Once",
    "OnceRandomiser",
    "Reporting",
    "Rules",
    "Support",
    "better_once",
    "change_log_ratio",
    "code",
    "default_levels",
    "draw_rounds",
    "gradual_levels",
    "make_mechanism",
    "nested_thresholds",
    "support",
]

MECHANISMS: Final[dict[Reporting, type[Memoized] | type[Once] | type[Hashed] | type[Nested]]] = {
    "memoized": Memoized,
    "once": Once,
    "hashed": Hashed,
    "nested": Nested,
}


def make_mechanism(attribute: Attribute, budget: Budget, digest: bytes) -> Mechanism:
    """The one that a manifest asks for. Raises `ParameterError` where the budget allows none."""
    return MECHANISMS[budget.reporting].asked(attribute, budget, digest)

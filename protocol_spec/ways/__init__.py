"""How one question is answered: the four ways of reporting behind one interface for both sides.

    memoized   the paper: a memo of each value for life, fresh noise over it in every round
    once       the device draws its round(s) at joining and answers in no other
    hashed     the value's cell instead of the value: at most two memos, whatever changes
    nested     all reports of the value are drawn at once, and each tells a little more

`interface.py` says what each offers; `choosing.py` makes the one that a manifest asks for.
"""

from protocol_spec.ways.choosing import Budget, ask_levels, make_way
from protocol_spec.ways.hashed import HashedWay
from protocol_spec.ways.interface import WAYS, Reporting, Support, Way, WayRandomiser
from protocol_spec.ways.memoized import MemoizedWay
from protocol_spec.ways.nested import NestedWay
from protocol_spec.ways.once import OnceWay

__all__ = [
    "WAYS",
    "Budget",
    "HashedWay",
    "MemoizedWay",
    "NestedWay",
    "OnceWay",
    "Reporting",
    "Support",
    "Way",
    "WayRandomiser",
    "ask_levels",
    "make_way",
]

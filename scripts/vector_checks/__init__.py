"""What each kind of entry in a file of reference values says about the code.

entries.py       one entry, and what was not looked at in it
calibration.py   kinds about chances, privacy loss, variances and the choice
estimation.py    kinds about intervals, differences, numbers and linked tables
reporting.py     kinds about the other ways of reporting
"""

from collections.abc import Callable, Iterator
from typing import Final

from vector_checks import calibration, estimation, reporting
from vector_checks.entries import Compared, Entry

KINDS: Final[dict[str, Callable[[Entry], Iterator[Compared]]]] = {
    **calibration.KINDS,
    **estimation.KINDS,
    **reporting.KINDS,
}

__all__ = ["KINDS", "Compared", "Entry"]

"""How one question is answered: the mechanisms, each in one file with both sides.

    memoized   the paper: a memo of each value for life, fresh noise over it in every round
    once       the device draws its round(s) at joining and answers in no other
    hashed     the value's cell instead of the value: at most two memos, whatever changes
    nested     all reports of the value are drawn at once, and each discloses a little more

`base.py` has what they share. To add one: its file, its name in `Reporting` and in `MECHANISMS`,
its documentation, tests and vectors. None needs numpy; estimating from counts is in `estimation`.
"""

import os
import sys
from typing import Final

from protocol_spec.attributes import Attribute
from protocol_spec.mechanisms.base import *
from protocol_spec.mechanisms.hashed import *
from protocol_spec.mechanisms.memoized import *
from protocol_spec.mechanisms.nested import *
from protocol_spec.mechanisms.once import *

MECHANISMS: Final[dict[Reporting, type[Memoized] | type[Once] | type[Hashed] | type[Nested]]] = {
    "memoized": Memoized,
    "once": Once,
    "hashed": Hashed,
    "nested": Nested,
}
DEFAULT_MECHANISM: Final[Reporting] = "memoized"  # where a manifest names none


def make_mechanism(attribute: Attribute, budget: Budget, digest: bytes) -> Mechanism:
    """The one that a manifest asks for. Raises `ParameterError` where the budget allows none."""
    return MECHANISMS[budget.reporting].asked(attribute, budget, digest)


def _load_outside(place: str) -> None:
    """Add the mechanism that a file, or a module on Python's path, has as `MECHANISM`."""
    from importlib import import_module, util  # noqa: PLC0415 - hardly ever needed

    try:
        if not place.endswith(".py"):
            module = import_module(place)
        else:
            found = util.spec_from_file_location(f"allomfree_mechanism_{len(MECHANISMS)}", place)
            module = util.module_from_spec(found)  # type: ignore[arg-type]
            sys.modules[module.__name__] = module
            found.loader.exec_module(module)  # type: ignore[union-attr]
        made = module.MECHANISM
        for name in ("rules", "analysis", "asked"):  # without them nothing else can be imported
            getattr(made, name)
        if made.reporting in MECHANISMS:
            raise AttributeError(
                f"there is another {made.reporting!r}; give it its own `reporting`"
            )
        MECHANISMS[made.reporting] = made
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        sys.exit(f"error: {OUTSIDE}: {place} has no mechanism: {error}. Nothing was done")


# For research: mechanisms that are not part of the protocol, for the processes that have the
# variable. A manifest cannot bring any.
OUTSIDE: Final = "ALLOMFREE_MECHANISMS"
for _place in filter(None, os.environ.get(OUTSIDE, "").split(os.pathsep)):
    _load_outside(_place)

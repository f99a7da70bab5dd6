"""From counts to frequencies with honest error bars. The one part of the contract that needs numpy.

Everything works on integer counts per value, never on reports, and is vectorised over values.

    intervals.py     projections, the exact variance and skewness of estimates, intervals from those
    frequencies.py   counts to `Estimate`: one round, several pooled, several levels, a window
    numbers.py       differences and other weighted sums; for numeric attributes mean, distribution
                     function and quantiles, and what a result says of them
    changes.py       trends over rounds, and differences of two results
    pairs.py         two questions answered together: table, margins, and whether they are related
    reliability.py   what intervals do not account for: liars, and devices that are silent
"""

from protocol_spec.estimation.changes import *
from protocol_spec.estimation.frequencies import *
from protocol_spec.estimation.intervals import *
from protocol_spec.estimation.numbers import *
from protocol_spec.estimation.pairs import *
from protocol_spec.estimation.reliability import *
from protocol_spec.mechanisms.base import Channel as Channel

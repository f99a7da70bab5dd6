"""Trials: campaigns in which every device answers with a value that it makes up.

Claim: a trial reveals nothing about anybody, whatever its manifest asks, because a device that has
joined one reads none of its owner's values (M117). So nothing is charged for it.

Everybody knows how often each value is made up. That is the truth to which a trial's results can be
compared.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Final

from protocol_spec.manifest import Manifest
from protocol_spec.randomiser import Entropy, random_below

TRIAL_MARK: Final = "TRIAL: "
_FIRST_WEIGHT: Final = 1 << 24  # with most values, the last one still has 256


def is_trial(manifest: Manifest) -> bool:
    """Whether its title says so, which owners read before they agree."""
    return manifest.title.startswith(TRIAL_MARK)


def made_up_value(k: int, entropy: Entropy) -> int:
    """The index of a value drawn at random, of k values."""
    ends = list(accumulate(_weights(k)))
    return bisect_right(ends, random_below(ends[-1], entropy))


def made_up_frequencies(k: int) -> list[float]:
    """How often each value is drawn: the second half as often as the first, the third a third."""
    weights = _weights(k)
    return [weight / sum(weights) for weight in weights]


def _weights(k: int) -> list[int]:
    return [_FIRST_WEIGHT // place for place in range(1, k + 1)]

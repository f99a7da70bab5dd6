"""A mechanism of one's own, in one file: `steady` draws one noisy answer and repeats it as it is.

It is `memoized` without the second step. The first round is as precise as any number of rounds, and
the first report discloses all of eps_inf. Try it with simulator, planner and benchmark:

    ALLOMFREE_MECHANISMS=docs/examples/steady.py allomfree-sim manifest adult --reporting steady
"""

from __future__ import annotations

import os
from typing import ClassVar

from protocol_spec.attributes import Attribute
from protocol_spec.calibration import calibrate_once
from protocol_spec.mechanisms import Analysis, Budget, Memoized, Rules, better_once
from protocol_spec.randomiser import Entropy, Randomiser

PROTOCOLS = ("GRR", "OUE", "SS")


class Repeating(Randomiser):
    """A device: the memo is drawn as usual, and every report is the memo."""

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        return memo


class Steady(Memoized):
    """Both sides: how a device draws, and the probabilities that a collector estimates with."""

    reporting: ClassVar = "steady"
    rules: ClassVar[Rules] = Rules(PROTOCOLS, PROTOCOLS, PROTOCOLS, answers_first_value_only=True)
    analysis: ClassVar[Analysis] = Analysis(
        combined="pooled",
        hides="the value, and no more in later rounds than in the first",
        floor="noise of the one memo per device",
        together="pooled",
        caveat="Each device sends the same noisy answer in every round.",
    )

    @classmethod
    def asked(cls, attribute: Attribute, budget: Budget, digest: bytes) -> Steady:  # noqa: ARG003
        """What a manifest asks for. The calibration has p1, q1 of the memo; p2, q2 are 1 and 0."""
        noise = better_once(attribute.k, budget.eps_inf)
        if attribute.protocol != "auto":
            noise = calibrate_once(attribute.protocol, k=attribute.k, epsilon=budget.eps_inf)
        return cls(noise, 1)

    def why(self, attribute: Attribute, budget: Budget) -> str:  # noqa: ARG002
        return "the least variance at eps_inf"

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> Randomiser:  # noqa: ARG002
        return Repeating(self.calibration, entropy)


MECHANISM = Steady

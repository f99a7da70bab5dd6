"""Budgets for property tests: (protocol, method, k, eps_inf, eps_1) that can be calibrated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from hypothesis import strategies as st

from protocol_spec import (
    Calibration,
    Manifest,
    Method,
    calibrate,
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_result,
    decode_signature,
    decode_state,
    decode_thresholds,
    largest_eps_1,
)
from tests.support.protocol import reference, vectors

# The four unary protocols are the same under both methods.
VARIANTS = (*((p, "exact") for p in reference.LONGITUDINAL), ("L-GRR", "paper"))


class Budget(NamedTuple):
    protocol: str
    method: str
    k: int
    eps_inf: float
    eps_1: float

    def calibrate(self) -> Calibration:
        method = cast(Method, self.method)
        return calibrate(
            self.protocol, k=self.k, eps_inf=self.eps_inf, eps_1=self.eps_1, method=method
        )

    def reference(self) -> reference.Mechanism:
        return reference.calibrate(self.protocol, self.k, self.eps_inf, self.eps_1, self.method)


@st.composite
def budgets(draw: st.DrawFn, variant: tuple[str, str]) -> Budget:
    """eps_inf from 1e-3 to 20, eps_1 from 1e-5 to the largest possible, k from 2 to 4096."""
    protocol, method = variant
    # Drawn as logarithms: otherwise nearly every eps_inf would be above 1.
    eps_inf = math.exp(draw(st.floats(math.log(1e-3), math.log(20))))
    largest = largest_eps_1(protocol, eps_inf=eps_inf)
    eps_1 = draw(st.sampled_from([1e-5, largest]) | st.floats(1e-5, largest))
    return Budget(protocol, method, draw(st.integers(2, 4096)), eps_inf, eps_1)


def feasible(variant: tuple[str, str], k: int, eps_inf: float, eps_1: float) -> Budget | None:
    """The budget, or None when the protocol cannot reach that eps_1."""
    if eps_1 > largest_eps_1(variant[0], eps_inf=eps_inf):
        return None
    return Budget(*variant, k, eps_inf, eps_1)


def budget_of(entry: dict[str, Any]) -> Budget:
    """The budget that an entry of the calibration vectors is about."""
    return Budget(*(entry[name] for name in ("protocol", "method", "k", "eps_inf", "eps_1")))


def near(got: float, wanted: Any, rel: float = 1e-12) -> bool:
    """Equal to 1e-12 of a number or its decimal text."""
    return math.isclose(got, float(wanted), rel_tol=rel, abs_tol=1e-300)


def relative(got: float, wanted: reference.Real) -> float:
    """Relative error; absolute where the right answer is 0."""
    error = abs(reference.mp.mpf(got) - wanted)
    return float(error / abs(wanted)) if wanted else float(error)


# --- The decoder of each kind of message, and the campaigns that the vectors are about.


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "report": decode_report,
    "signature": decode_signature,
    "thresholds": decode_thresholds,
    "state": decode_state,
    "receipts": decode_receipts,
    "request": decode_request,
    "response": decode_response,
    "result": decode_result,
}
MANIFESTS = {
    entry["name"]: Manifest.from_bytes(bytes.fromhex(entry["hex"]))
    for entry in vectors.load("manifests.json")["good"]
}


def fleet() -> Manifest:
    """With every longitudinal protocol."""
    return MANIFESTS["fleet"]

"""Why a device samples one attribute for life: the settings Spl and Smp, side by side.

A device with d attributes can report all of them with 1/d of the budget each (Spl), or r of them,
drawn at random, with 1/r of the budget each (Smp; r = d is Spl). Fewer attributes mean fewer
devices per attribute, n r / d, but far less noise from each. One is always best; these functions
let a planner show by how much.
"""

from __future__ import annotations

from protocol_spec.calibration import calibrate, calibrate_once
from protocol_spec.chances import Method
from protocol_spec.errors import ParameterError

__all__ = ["smp_variance", "smp_variance_once", "spl_variance"]


def smp_variance(
    protocol: str,
    *,
    k: int,
    n: int,
    d: int,
    r: int = 1,
    eps_inf: float,
    eps_1: float,
    f: float = 0.0,
    method: Method = "exact",
) -> float:
    """Variance of one frequency when each of n devices samples r of its d attributes."""
    _check_attributes(d, r)
    budget = calibrate(protocol, k=k, eps_inf=eps_inf / r, eps_1=eps_1 / r, method=method)
    return budget.variance(n, f) * d / r


def spl_variance(
    protocol: str,
    *,
    k: int,
    n: int,
    d: int,
    eps_inf: float,
    eps_1: float,
    f: float = 0.0,
    method: Method = "exact",
) -> float:
    """Variance of one frequency when each device splits its budget over all d attributes."""
    return smp_variance(
        protocol, k=k, n=n, d=d, r=d, eps_inf=eps_inf, eps_1=eps_1, f=f, method=method
    )


def smp_variance_once(
    protocol: str, *, k: int, n: int, d: int, r: int = 1, epsilon: float, f: float = 0.0
) -> float:
    """The same for a single collection with GRR, OUE or SUE; `r = d` is Spl."""
    _check_attributes(d, r)
    return calibrate_once(protocol, k=k, epsilon=epsilon / r).variance(n, f) * d / r


def _check_attributes(d: int, r: int) -> None:
    if d < 1:
        raise ParameterError("d", d, "a campaign has at least one attribute")
    if not 1 <= r <= d:
        raise ParameterError("r", r, f"a device samples from 1 to d = {d} attributes")

"""Before a campaign: what its histograms will look like, and why each protocol was chosen.

All numbers come from the calibration that devices will use; the page and `plan` call this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from protocol_spec import (
    ADAPTIVE,
    Attribute,
    Calibration,
    InfeasibleBudget,
    Manifest,
    ParameterError,
    smp_variance,
    spl_variance,
)
from protocol_spec.estimation import critical_value

CONFIDENCE: Final = 0.95
POOLED_ROUNDS: Final = (1, 7, 30, 365)


@dataclass(frozen=True, slots=True)
class AttributePlan:
    """What to expect of one attribute, as half-widths of 95 % intervals near frequency f."""

    name: str
    k: int
    protocol: str
    why: str
    devices: int
    half_width: float
    half_width_all: float
    half_width_pooled: dict[int, float]
    floor: float
    devices_for_precision: int | None
    split_budget_ratio: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole campaign."""

    n: int
    f: float
    precision: float | None
    eps_inf: float
    eps_1: float
    receipt_pages: int
    attributes: tuple[AttributePlan, ...]


def plan(
    attributes: tuple[Attribute, ...],
    *,
    n: int,
    eps_inf: float,
    eps_1: float,
    f: float = 0.1,
    precision: float | None = None,
) -> Plan:
    """Expected precision with n devices in all, each answering one attribute."""
    if n < 1:
        raise ParameterError("n", n, "a number of devices is 1 or more")
    if precision is not None and not 0.0 < precision < 1.0:
        raise ParameterError("precision", precision, "a half-width lies between 0 and 1")
    rows = tuple(
        _attribute(a, len(attributes), n, eps_inf, eps_1, f, precision) for a in attributes
    )
    return Plan(n, f, precision, eps_inf, eps_1, max(1, math.ceil(n / 1000)), rows)


def plan_manifest(manifest: Manifest, *, n: int, f: float, precision: float | None) -> Plan:
    """The same for a manifest."""
    return plan(
        manifest.attributes,
        n=n,
        eps_inf=manifest.eps_inf,
        eps_1=manifest.eps_1,
        f=f,
        precision=precision,
    )


def _attribute(
    attribute: Attribute,
    d: int,
    n: int,
    eps_inf: float,
    eps_1: float,
    f: float,
    precision: float | None,
) -> AttributePlan:
    calibration = attribute.calibration(eps_inf, eps_1)
    devices = max(1, n // d)
    z = critical_value(CONFIDENCE)
    sampling = f * (1 - f) / devices
    pooled = {
        t: z * math.sqrt(calibration.pooled_variance(devices, t, f) + sampling)
        for t in POOLED_ROUNDS
    }
    single = calibration.variance(1, f)
    needed = None if precision is None else math.ceil(single * (z / precision) ** 2) * d
    return AttributePlan(
        name=attribute.name,
        k=attribute.k,
        protocol=calibration.protocol,
        why=why(attribute, eps_inf, eps_1),
        devices=devices,
        half_width=z * math.sqrt(single / devices),
        half_width_all=critical_value(CONFIDENCE, attribute.k) * math.sqrt(single / devices),
        half_width_pooled=pooled,
        floor=floor(calibration, devices, f),
        devices_for_precision=needed,
        split_budget_ratio=_split_ratio(attribute, d, eps_inf, eps_1, f),
    )


def floor(calibration: Calibration, devices: int, f: float) -> float:
    """Half-width that no number of rounds goes below: first-stage noise and sampling alone."""
    memo = f * calibration.device_noise(True)[0] + (1 - f) * calibration.device_noise(False)[0]
    return critical_value(CONFIDENCE) * math.sqrt((memo + f * (1 - f)) / devices)


def why(attribute: Attribute, eps_inf: float, eps_1: float) -> str:
    """What made an attribute's protocol the one it is: the two variances, or the manifest."""
    if attribute.protocol != "auto":
        return "named in the manifest"
    both = attribute.choice(eps_inf, eps_1)
    return (
        f"variance of one answer: L-GRR {both.grr.variance(1):.4g}, "
        f"L-OSUE {both.osue.variance(1):.4g}"
    )


def _split_ratio(
    attribute: Attribute, d: int, eps_inf: float, eps_1: float, f: float
) -> float | None:
    """How many times the interval would widen if every device answered all d attributes.

    None where the named protocol cannot work with a d-th of the budget at all.
    """
    protocol = ADAPTIVE if attribute.protocol == "auto" else attribute.protocol
    budget = {"k": attribute.k, "n": 1, "d": d, "method": attribute.method}
    sampled = smp_variance(protocol, eps_inf=eps_inf, eps_1=eps_1, f=f, **budget)  # type: ignore[arg-type]
    try:
        split = spl_variance(protocol, eps_inf=eps_inf, eps_1=eps_1, f=f, **budget)  # type: ignore[arg-type]
    except InfeasibleBudget:
        return None
    return math.sqrt(split / sampled)

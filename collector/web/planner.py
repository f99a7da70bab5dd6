"""The planner's numbers, from the same function as `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, cast

from collector.show.planning import POOLED_ROUNDS, Plan, Terms, plan_manifest, plan_terms
from collector.show.words import rounds_name
from collector.store import Store
from protocol_spec import LONGITUDINAL, Attribute, ParameterError, Reporting
from protocol_spec.ways import WAYS

LARGEST: Final = {"n": 1_000_000_000, "k": 4096, "d": 128, "rounds": 100_000}
COLUMNS: Final = (
    "name",
    "k",
    "protocol",
    "why",
    "devices",
    "half_width",
    "half_width_all",
    *(f"half_width_pooled_{t}" for t in POOLED_ROUNDS),
    "floor",
    "devices_for_precision",
    "split_budget_ratio",
    "reporting",
    "changes",
    "difference",
    "difference_all",
    "target",
    "verdict",
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the planner is asked. With a campaign, its own budget and attributes are used."""

    n: int = 10_000
    k: int = 5
    d: int = 1
    eps_inf: float = 2.0
    eps_1: float = 0.6
    f: float = 0.1
    precision: float | None = None
    protocol: str = "auto"
    campaign: str = ""
    reporting: Reporting = "memoized"
    rounds: int = 365
    changes: bool = False


def read_parameters(query: Mapping[str, str]) -> Parameters:
    """The parameters in an address; what is not named has its default."""
    given: dict[str, Any] = {}
    for field in fields(Parameters):
        text = query.get(field.name, "").strip()
        if text:
            given[field.name] = _READ[field.name](field.name, text)
    return Parameters(**given)


def make_plan(asked: Parameters, store: Store | None) -> Plan:
    """The plan: the same numbers as `allomfree-collector plan` prints."""
    if asked.campaign and store is not None:
        manifest = store.campaign(asked.campaign).manifest
        return plan_manifest(manifest, n=asked.n, f=asked.f, precision=asked.precision)
    values = tuple(map(str, range(asked.k)))
    attributes = tuple(
        Attribute(
            f"attribute-{i + 1}",
            "",
            values,
            protocol=asked.protocol if asked.reporting == "memoized" else "auto",
            total=True,
            changes=asked.changes,
        )
        for i in range(asked.d)
    )
    return plan_terms(attributes, _terms(asked), n=asked.n, f=asked.f, precision=asked.precision)


def _terms(asked: Parameters) -> Terms:
    """One round for life has all of the budget in one report."""
    once = asked.reporting == "once"
    return Terms(
        asked.reporting,
        asked.eps_inf,
        asked.eps_inf if once else asked.eps_1,
        asked.rounds,
        each=1 if once else 0,
    )


def rows(planned: Plan) -> list[dict[str, object]]:
    """One row an attribute, the pooled widths in columns of their own."""
    return [
        {
            **asdict(a),
            **{f"half_width_pooled_{t}": width for t, width in a.half_width_pooled.items()},
            "verdict": "; ".join(
                f"{rounds_name(judged.rounds)}: {judged.sentence}" for judged in a.verdict
            ),
        }
        for a in planned.attributes
    ]


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ParameterError(name, text[:40], "must be a whole number")
    if int(text) > LARGEST[name]:
        raise ParameterError(name, text, f"must be at most {LARGEST[name]:,}")
    if int(text) < 1:
        raise ParameterError(name, text, "must be 1 or more")
    return int(text)


def _real(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ParameterError(name, text[:40], "must be a number") from None


def _protocol(name: str, text: str) -> str:
    if text not in ("auto", *LONGITUDINAL):
        raise ParameterError(name, text[:40], f"choose auto, {', '.join(LONGITUDINAL)}")
    return text


def _reporting(name: str, text: str) -> Reporting:
    if text not in WAYS:
        raise ParameterError(name, text[:40], f"choose {', '.join(WAYS)}")
    return cast(Reporting, text)


def _yes(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ParameterError(name, text[:40], "must be yes or no")
    return text == "yes"


def _text(_name: str, text: str) -> str:
    return text


_READ: Final = {
    **dict.fromkeys(("n", "k", "d", "rounds"), _whole),
    **dict.fromkeys(("eps_inf", "eps_1", "f", "precision"), _real),
    "protocol": _protocol,
    "campaign": _text,
    "reporting": _reporting,
    "changes": _yes,
}

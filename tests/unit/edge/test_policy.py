"""The owner's limits: where exactly each one lies, and how its table is read."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from edge_client.errors import PolicyRefusal, SettingsError
from edge_client.policy import Operator, Policy
from tests.support.edge import DAY, FUEL, daily


def refusal(policy: Policy, **options: Any) -> str | None:
    """The limit that a campaign is refused for, or None."""
    try:
        policy.check(daily(**options))
    except PolicyRefusal as refused:
        return str(refused).partition("change policy.")[2].split(" ")[0]
    return None


@pytest.mark.parametrize(
    ("policy", "options", "limit"),
    [
        (Policy(max_eps_inf=2.0), {"eps_inf": 2.0}, None),
        (Policy(max_eps_inf=2.0), {"eps_inf": math.nextafter(2.0, 3.0)}, "max_eps_inf"),
        (Policy(max_eps_inf=0.0), {"eps_inf": 0.5, "eps_1": 0.1}, "max_eps_inf"),
        (Policy(max_eps_inf=math.inf), {"eps_inf": 20.0}, None),
        (Policy(max_values=2), {"max_values": 2}, None),
        (Policy(max_values=2), {"max_values": 3}, "max_values"),
        (Policy(min_period=DAY), {"period": DAY}, None),
        (Policy(min_period=DAY), {"period": DAY - 1}, "min_period"),
        (Policy(campaigns=("test-*",)), {}, None),
        (Policy(campaigns=(daily().campaign,)), {}, None),
        (Policy(campaigns=("test",)), {}, "campaigns"),
        (Policy(campaigns=("TEST-*",)), {}, "campaigns"),
        (Policy(campaigns=()), {}, "campaigns"),
        (Policy(sources=("fu*",)), {}, None),
        (Policy(sources=("fuel",)), {"attributes": FUEL + FUEL.replace("fuel", "x")}, "sources"),
        (Policy(sources=()), {}, "sources"),
        (Policy(), {"eps_inf": 2.0}, None),
        (Policy(), {"eps_inf": 2.5}, "max_eps_inf"),
        (Policy(), {"max_values": 2}, "max_values"),
        (Policy(), {"period": 3_600}, None),
        (Policy(), {"period": 3_599}, "min_period"),
    ],
)
def test_limits(policy: Policy, options: dict[str, Any], limit: str | None) -> None:
    assert refusal(policy, **options) == limit


@pytest.mark.parametrize(
    ("budget", "charged", "allowed"),
    [(2.0, 0.0, True), (2.0, 0.1, False), (6.0, 4.0, True), (6.0, 4.1, False), (1.9, 0.0, False)],
)
def test_the_lifetime_budget(budget: float, charged: float, allowed: bool) -> None:
    policy = Policy(lifetime_budget=budget)
    assert policy.allows_charge(daily().eps_inf, charged) is allowed
    if not allowed:
        with pytest.raises(PolicyRefusal, match="nothing was drawn, sent or spent"):
            policy.check_budget("test", "fuel", daily().eps_inf, charged)


def test_a_refusal_names_campaign_limit_numbers_and_remedy() -> None:
    with pytest.raises(PolicyRefusal) as refused:
        Policy(max_eps_inf=1.0).check(daily())
    assert str(refused.value) == (
        f"{daily().campaign} may reveal eps_inf = 2, more than 1. Refused by your policy; nothing "
        "was drawn, sent or spent. If you agree to it, change policy.max_eps_inf in the "
        "configuration file: max_eps_inf = 2.0, below [policy]"
    )


def test_every_limit_can_be_set() -> None:
    table = {
        "max_eps_inf": 1,
        "lifetime_budget": 2.5,
        "max_values": 2,
        "min_period": "6h",
        "campaigns": ["a-*"],
        "sources": ["fuel", "stove"],
        "operators": {"city": "07" * 32},
        "total_budget": 3,
    }
    assert table.keys() == {field.name for field in fields(Policy)}
    assert Policy.from_table(table) == Policy(
        1, 2.5, 2, 21_600, ("a-*",), ("fuel", "stove"), (Operator(b"\7" * 32, "city"),), 3
    )
    assert Policy.from_table({}) == Policy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_eps_inf", "2"),
        ("max_eps_inf", -1),
        ("max_eps_inf", math.nan),
        ("max_eps_inf", True),
        ("lifetime_budget", [1]),
        ("max_values", 0),
        ("max_values", 1.5),
        ("min_period", "soon"),
        ("min_period", "6 h"),
        ("min_period", 1.5),
        ("min_period", -1),
        ("campaigns", "a-*"),
        ("sources", [1]),
        ("max_epsilon", 2),
        ("max_eps_1", 2),
    ],
)
def test_an_unusable_limit_is_an_error_never_ignored(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"policy.{name}"):
        Policy.from_table({name: value})

"""ALLOMFREE's choice by what will be read: one round, or all rounds pooled."""

from __future__ import annotations

import math

import pytest

from protocol_spec import ParameterError, choose
from protocol_spec.calibration import choose_for
from tests.support.protocol import reference

BUDGETS = ((1.0, 0.3), (2.0, 0.6), (4.0, 2.0))


def crossover(eps_inf: float, eps_1: float, rounds: int) -> float:
    a, c = math.exp(eps_inf), math.exp(eps_1)
    wa, wc = (1 - 1 / rounds) / (a - 1) ** 2, 1 / rounds / (c - 1) ** 2
    return 2 + 3 * (wa * a + wc * c) / (wa + wc)


@pytest.mark.parametrize("rounds", [1, 2, 5, 20, 365])
@pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
def test_pooled_it_is_the_least_pooled_variance(eps_inf: float, eps_1: float, rounds: int) -> None:
    """By the closed form, and by sums over everything that can happen."""
    limit = crossover(eps_inf, eps_1, rounds)
    for k in {2, math.floor(limit) - 1, math.floor(limit), math.floor(limit) + 1, 200}:
        chosen = choose_for("pooled", k=k, eps_inf=eps_inf, eps_1=eps_1, rounds=rounds).chosen
        assert chosen.protocol == ("L-GRR" if k <= limit else "L-OSUE"), k
        if rounds <= 5:
            grr, osue = (
                reference.calibrate(p, k, eps_inf, eps_1).pooled_variance(1, rounds, 0.0)
                for p in ("L-GRR", "L-OSUE")
            )
            assert (chosen.protocol == "L-GRR") == (grr <= osue)


def test_it_is_the_published_crossover() -> None:
    """For (2, 0.6): 7.5, 8.5, 9.6, 11.5 and 17.8 values at 1, 5, 10, 20 and 100 rounds."""
    for rounds, last in ((1, 7), (5, 8), (10, 9), (20, 11), (100, 17)):
        chosen = [
            choose_for("pooled", k=k, eps_inf=2.0, eps_1=0.6, rounds=rounds).chosen.protocol
            for k in (last, last + 1)
        ]
        assert chosen == ["L-GRR", "L-OSUE"]


@pytest.mark.parametrize("method", ["exact", "paper"])
@pytest.mark.parametrize("k", [5, 8, 40])
def test_by_the_round_it_is_the_papers(k: int, method: str) -> None:
    paper = choose(k=k, eps_inf=2.0, eps_1=0.6, method=method)  # type: ignore[arg-type]
    by_round = choose_for("round", k=k, eps_inf=2.0, eps_1=0.6, rounds=99, method=method)  # type: ignore[arg-type]
    one = choose_for("pooled", k=k, eps_inf=2.0, eps_1=0.6, rounds=1, method=method)  # type: ignore[arg-type]
    assert by_round == one == paper


@pytest.mark.parametrize(("reading", "rounds"), [("both", 5), ("pooled", 0)])
def test_refused(reading: str, rounds: int) -> None:
    with pytest.raises(ParameterError):
        choose_for(reading, k=5, eps_inf=2.0, eps_1=0.6, rounds=rounds)  # type: ignore[arg-type]

"""A table as one test: all cases run, what fails is named, other parameters stay."""

from __future__ import annotations

import inspect

import pytest

from tests.support.tables import every


def test_every_case_runs_and_each_that_fails_is_named() -> None:
    ran = []

    @every("number", range(5), ids=lambda n: f"case {n}")
    def even(number: int) -> None:
        ran.append(number)
        assert number % 2 == 0

    with pytest.raises(ExceptionGroup, match="2 of 5 cases") as raised:
        even()
    assert ran == [0, 1, 2, 3, 4]
    notes = [getattr(error, "__notes__", []) for error in raised.value.exceptions]
    assert notes == [["number: case 1"], ["number: case 3"]]


@pytest.mark.parametrize("limit", [5, 6])
@every("number", range(5))
def test_other_parameters_and_fixtures_stay(
    number: int, limit: int, request: pytest.FixtureRequest
) -> None:
    assert number < limit
    assert list(inspect.signature(request.function).parameters) == ["limit", "request"]


def test_a_table_without_cases_is_a_fault() -> None:
    @every("number", [])
    def nothing(number: int) -> None:
        raise AssertionError(number)

    with pytest.raises(AssertionError, match="a table without cases"):
        nothing()

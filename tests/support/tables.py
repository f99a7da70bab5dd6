"""One test for a long table: every case runs, and each that fails is told with its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TypeVar

Case = TypeVar("Case")
Test = Callable[..., None]


def every(
    name: str, cases: Iterable[Case], ids: Callable[[Case], str] = str
) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, for hundreds of cases of which each takes no time: as tests
    of their own, every worker would collect and report them one by one."""

    table = list(cases)

    def decorate(body: Test) -> Test:
        @functools.wraps(body)
        def test(**others: object) -> None:
            assert table, "a table without cases"
            failed = [error for case in table if (error := _error(body, name, case, ids, others))]
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(table)} cases", failed)

        given = inspect.signature(body)
        left = [given.parameters[key] for key in given.parameters if key != name]
        vars(test)["__signature__"] = given.replace(parameters=left)
        return test

    return decorate


def _error(
    body: Test, name: str, case: Case, ids: Callable[[Case], str], others: dict[str, object]
) -> Exception | None:
    try:
        body(**{name: case, **others})
    except Exception as error:  # noqa: BLE001 - of every kind, as pytest would
        error.add_note(f"{name}: {ids(case)}")
        return error
    return None

"""What every test may use: places, needed programs, tables of cases, several waits at once.

A test says what it needs beyond Python packages with `need("mosquitto")` in its body or a fixture,
or with the mark `@pytest.mark.needs("mosquitto")`. Without the program the test is skipped, and
with CI=true it fails (see tests/conftest.py). Programs that tests start import this module, too, so
it loads little.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import sqlite3
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"  # reference material next to a checkout; often not there
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - most tests are not about power cuts
_ROOMY = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 512 << 20
QUICK_DISK: Final = str(_SHARED_MEMORY) if _ROOMY else None  # for `tempfile`: syncs cost nothing


# --- what is missing ------------------------------------------------------------------------------


AXE: Final = ROOT / ".venv/node/node_modules/axe-core/axe.min.js"
JAVASCRIPT: Final = ROOT / ".venv/javascript-device/node_modules"
OF_NODE: Final = {"axe-core": AXE, "javascript-device": JAVASCRIPT / "mqtt/package.json"}


def find(name: str) -> str | None:
    """Where a program is, or what is installed with npm."""
    from testbed.collector import find_postgres  # noqa: PLC0415
    from testbed.processes import find_program  # noqa: PLC0415

    if name in OF_NODE:
        return str(OF_NODE[name]) if OF_NODE[name].exists() else None
    return str(find_postgres() or "") or None if name == "postgres" else find_program(name)


def path_of(name: str) -> str:
    """The path of a program; without it the test is skipped, or with CI=true fails."""
    found = find(name)
    if found is None:
        import pytest  # noqa: PLC0415

        pytest.skip(f"{name} is not installed")
    return found


def need(*names: str) -> None:
    """Skip the test unless all of these are installed; with CI=true it fails instead."""
    for name in names:
        path_of(name)


def rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of an SQLite file, as another process sees them."""
    with closing(sqlite3.connect(path)) as db:
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {n: db.execute(f"SELECT * FROM {n}").fetchall() for n in names}  # noqa: S608


# --- processes ------------------------------------------------------------------------------------


def has_ended(pid: int) -> bool:
    """Also if nobody has asked yet how: a zombie holds nothing any more."""
    with suppress(ProcessLookupError, FileNotFoundError):
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


# --- several waits at once ------------------------------------------------------------------------


Case = TypeVar("Case")


def all_at_once(act: Callable[[Case], object], cases: Iterable[Case]) -> None:
    """Act on every case in a thread of its own; every failure is shown, with its case."""
    listed = list(cases)
    load_what_was_put_off()
    with ThreadPoolExecutor(len(listed)) as pool:
        running = [pool.submit(act, case) for case in listed]
    failures = [(case, future.exception()) for case, future in zip(listed, running)]
    raised = [_named(case, failure) for case, failure in failures if failure is not None]
    if raised:
        raise BaseExceptionGroup("not every case went well", raised)


def load_what_was_put_off() -> None:
    """Before threads need it: the first two to connect with paho would both begin to load it, and
    the second would find it empty (`protocol_spec.programs.mqtt`)."""
    urllib.request.getproxies()


def _named(case: object, failure: BaseException) -> BaseException:
    failure.add_note(f"case: {case}")
    return failure


# --- tables of cases ------------------------------------------------------------------------------


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

"""`pytest --workers`: collected once, every test run once, nothing lost when a worker dies."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.places import ROOT

CONFTEST = """
import os, pathlib, pytest
from tests.support.forked import pytest_addoption, pytest_runtestloop

HERE = pathlib.Path(__file__).parent

def note(word):
    with (HERE / "notes").open("a") as file:
        print(word, os.getpid(), file=file)

def pytest_collection_finish():
    note("collected")

@pytest.fixture(scope="session", autouse=True)
def whole_session():
    note("session-begins")
    yield
    note("session-ends")

@pytest.fixture(scope="module", autouse=True)
def whole_module():
    note("module-begins")
    yield
    note("module-ends")

@pytest.fixture(autouse=True)
def each(request):
    note(request.node.name)
"""
KINDS = """
import os, pytest

def test_passes(tmp_path):
    (tmp_path / "file").touch()

def test_prints_and_fails():
    print("a word before")
    assert [1, 2] == [1, 3]

def test_kills_its_process():
    os._exit(7)

def test_after_the_killed_one():
    pass

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass

@pytest.fixture
def ends_badly():
    yield
    raise OSError("at the end")

def test_in_good_order(ends_badly):
    pass
"""
PAIR = "def test_one(): pass\ndef test_two(): pass\n"
BAD_END = """
import pytest

@pytest.fixture(scope="session")
def stays():
    yield
    raise OSError("the broker did not stop")

def test_uses_it(stays): pass
"""
MANY = "".join(f"def test_{i}(): pass\n" for i in range(50))
STOPS = f"def test_fails(): assert False\n{MANY}"


@dataclass(frozen=True)
class Finished:
    code: int
    shown: str
    notes: list[tuple[str, str]]  # a word, and the process that wrote it

    def times(self, word: str) -> int:
        return [noted for noted, _ in self.notes].count(word)

    def processes(self, word: str) -> list[str]:
        return [process for noted, process in self.notes if noted == word]


def run(place: Path, files: dict[str, str], *options: str) -> Finished:
    for name, text in {"conftest.py": CONFTEST, **files}.items():
        (place / name).write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, f"--rootdir={place}", *options, str(place)],
        cwd=ROOT, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    lines = (place / "notes").read_text().splitlines()
    return Finished(done.returncode, done.stdout, [tuple(line.split()) for line in lines])  # type: ignore[misc]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    files = {"test_kinds.py": KINDS, "test_pair.py": PAIR, "test_pear.py": PAIR}
    return run(tmp_path_factory.mktemp("forked"), files, "--workers", "2", "-rs")


def test_everything_is_counted_once(finished: Finished) -> None:
    assert finished.code == 1
    assert "3 failed" not in finished.shown
    closing = finished.shown.splitlines()[-1]
    assert re.search(r"2 failed, 7 passed, 1 skipped, 1 error in", closing), finished.shown
    for name in ("test_passes", "test_prints_and_fails", "test_after_the_killed_one"):
        assert finished.times(name) == 1
    assert finished.times("test_one") == finished.times("test_two") == 2


def test_collected_once_and_run_elsewhere(finished: Finished) -> None:
    (collecting,) = finished.processes("collected")
    assert collecting not in finished.processes("session-begins")


def test_a_failure_is_told_with_its_values_and_output(finished: Finished) -> None:
    assert "assert [1, 2] == [1, 3]" in finished.shown
    assert "a word before" in finished.shown
    assert "not today" in finished.shown
    assert "at the end" in finished.shown


def test_a_worker_that_dies_is_told_and_replaced(finished: Finished) -> None:
    assert "its process ended (exit code 7)" in finished.shown
    (before,) = finished.processes("test_kills_its_process")
    (after,) = finished.processes("test_after_the_killed_one")
    assert before != after


def test_set_up_once_a_file_and_torn_down_at_its_end(finished: Finished) -> None:
    """The file whose worker died is set up twice; only its first half is not torn down."""
    assert (finished.times("module-begins"), finished.times("module-ends")) == (4, 3)
    begun, ended = finished.processes("session-begins"), finished.processes("session-ends")
    assert len(begun) == len(set(begun)) <= 3
    assert set(begun) - set(ended) == set(finished.processes("test_kills_its_process"))


def test_what_fails_at_the_end_of_a_session_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, {"test_bad_end.py": BAD_END}, "--workers", "1", "-q")
    assert done.code == 1
    assert "the broker did not stop" in done.shown


def test_a_worker_that_dies_after_its_tests_fails_the_run_once(tmp_path: Path) -> None:
    killed = BAD_END.replace(
        'raise OSError("the broker did not stop")', "__import__('os')._exit(9)"
    )
    done = run(tmp_path, {"test_killed_late.py": killed}, "--workers", "1", "-q")
    assert done.code == 1
    assert "its process ended (exit code 9)" in done.shown
    assert "1 failed, 1 passed" in done.shown
    assert done.times("session-begins") == 1


def test_the_first_failure_can_stop_all(tmp_path: Path) -> None:
    done = run(tmp_path, {"test_stops.py": STOPS, "test_others.py": MANY}, "--workers=2", "-x")
    assert done.code == 1
    assert "stopping after 1 failures" in done.shown
    assert done.times("session-begins") == done.times("session-ends")
    assert done.processes("test_fails")[0] not in done.processes("test_0"), "nothing after it"

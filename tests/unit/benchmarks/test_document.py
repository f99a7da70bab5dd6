"""`docs/benchmarks.md` holds what was measured on one machine, each benchmark once."""

from __future__ import annotations

from benchmarks.document import ABOUT, PAGE, section, updated
from benchmarks.measurements import Measurement, ratio_of

HERE = {"processor": "some, 2 cores", "Python": "CPython 3.11"}
ELSEWHERE = {**HERE, "processor": "another, 64 cores"}


def part(name: str, value: float) -> str:
    measured = [Measurement("size", value, "bytes", 20)]
    return section(name, f"python scripts/benchmark.py {name}", measured, "0.1 on 2 cores", {})


def test_a_section_says_how_and_under_which_load() -> None:
    rows = [ratio_of("speed", [30.0, 40.0], [1.0, 2.0], at_least=20.0, note="5 users")]
    text = section("peers", "benchmark peers --runs 2", rows, "1.5 on 2 cores", {"other": "0.2.5"})
    assert text.startswith("## peers\n")
    assert "    benchmark peers --runs 2\n" in text
    assert "Load of the machine when it began: 1.5 on 2 cores." in text
    assert "Compared with other 0.2.5." in text
    assert "| speed | 25 x (20 to 30) | >= 20 | ok | 5 users |" in text


def test_measuring_again_replaces_only_that_section() -> None:
    page = updated("", HERE, "ingest", part("ingest", 11))
    page = updated(page, HERE, "agent", part("agent", 12))
    again = updated(page, HERE, "ingest", part("ingest", 13))
    assert again == updated(
        updated("", HERE, "agent", part("agent", 12)), HERE, "ingest", part("ingest", 13)
    )
    assert again.count("## ") == 2
    assert again.index("## agent") < again.index("## ingest")
    assert "13 bytes" in again
    assert "11 bytes" not in again
    assert "| processor | some, 2 cores |" in again


def test_writing_the_same_again_changes_nothing() -> None:
    page = updated(updated("", HERE, "agent", part("agent", 1)), HERE, "peers", part("peers", 2))
    assert updated(page, HERE, "peers", part("peers", 2)) == page


def test_another_machine_begins_another_page() -> None:
    page = updated("", HERE, "ingest", part("ingest", 11))
    moved = updated(page, ELSEWHERE, "agent", part("agent", 12))
    assert "another, 64 cores" in moved
    assert "ingest" not in moved


def test_errors_of_estimates_belong_to_no_machine() -> None:
    page = updated("", HERE, "ingest", part("ingest", 11))
    both = updated(page, ELSEWHERE, "accuracy", part("accuracy", 12))
    assert both.startswith(page)
    assert "12 bytes" in both
    moved = updated(both, ELSEWHERE, "agent", part("agent", 13))
    assert "another, 64 cores" in moved
    assert [line for line in moved.splitlines() if line.startswith("## ")] == [
        "## agent",
        "## accuracy",
    ]


def test_the_page_in_the_checkout_is_one_that_was_written() -> None:
    text = PAGE.read_text(encoding="utf-8")
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    known = [name for name in ABOUT if name in headings]
    assert headings == known, "in order; what was not measured on that machine is missing"
    assert {"agent", "ingest", "simulate", "accuracy"} <= set(headings)

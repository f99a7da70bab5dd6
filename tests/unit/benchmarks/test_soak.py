"""`soak`: real processes for a few seconds, and a rule that finds growth and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.growth import growth
from benchmarks.soak import LIMITS, Course, Soak, measure, run_through
from tests.support.simulation.users import real_user


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything sent is counted while it is looked at; what grows at the start is not judged."""
    for name, value in real_user(tmp_path).items():
        monkeypatch.setenv(name, value)
    soak = Soak(seconds=12.0, per_second=200, round_seconds=3)
    course = run_through(soak)
    assert course.accepted == course.sent == 2400
    assert course.rounds >= 1
    assert course.events >= 1
    assert (course.pages > 0, course.failures) == (True, 0)
    assert all(len(values) == len(course.seconds) > 10 for values in course.series.values())
    assert all(max(values) > 0 for values in course.series.values())
    picture = tmp_path / "soak.svg"
    rows = {row.what: row for row in measure(soak, picture, run=lambda _: course)}
    assert rows["reports sent and not counted"].verdict == "ok"
    assert "minutes" in picture.read_text()


def made(slope_per_hour: float, *, jitter: float = 0.5, teeth: float = 0.0) -> Course:
    """Twenty minutes of samples, every two seconds, after a start that fills caches."""
    generator, course = random.Random(1), Course(sent=1, accepted=1, events=1, rounds=1)
    course.seconds = [2.0 * i for i in range(600)]
    for name in LIMITS:
        course.series[name] = [
            60.0 + min(t, 300.0) / 30 + slope_per_hour * t / 3600
            + generator.gauss(0, jitter) + teeth * (t % 60) / 60
            for t in course.seconds
        ]  # fmt: skip
    return course


@pytest.mark.parametrize(
    ("course", "flat"),
    [
        (made(0.0), True),
        (made(0.0, teeth=20.0), True),
        (made(30.0), False),
        (made(60.0, teeth=20.0), False),
    ],
    ids=["flat", "a log that is emptied", "a leak", "a leak below a log that is emptied"],
)
def test_growth_is_found_and_nothing_else(course: Course, flat: bool) -> None:
    rows = measure(Soak(1200.0, 1, 20), run=lambda _: course)
    judged = [row for row in rows if row.what.endswith(": growth")]
    assert len(judged) == len(LIMITS)
    assert {row.verdict for row in judged} == {"ok" if flat else "BROKEN"}
    largest = [f"largest seen {max(course.series[name]):.4g}" for name in LIMITS]
    assert [row.note.split(", ")[-1] for row in judged] == largest, "of the values, not the slope"


def test_lost_reports_are_found() -> None:
    course = made(0.0)
    course.sent = 5
    (row,) = (r for r in measure(Soak(1.0, 1, 1), run=lambda _: course) if "not counted" in r.what)
    assert row.verdict == "BROKEN"


def test_the_slope_is_that_of_the_second_half() -> None:
    slope = growth(list(range(100)), [0.0] * 50 + [float(i) for i in range(50)])
    assert slope == pytest.approx((3600.0, 3600.0, 3600.0))
    assert growth([0.0], [1.0]).middle == 0.0

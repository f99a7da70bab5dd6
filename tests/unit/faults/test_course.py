"""From fault to fault: what could not happen is no fault, and everything that lasts ends."""

from __future__ import annotations

import pytest

from faults.course import Course
from faults.kinds import Fault
from faults.plan import Event
from stage.processes import StageError


class Site:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def check(self) -> None:
        """Nothing ends by itself here."""


def fault(name: str, target: str, *, fails: bool = False) -> Fault[Site]:
    def begin(site: Site) -> None:
        if fails:
            raise StageError("it is away")
        site.notes.append(name)

    return Fault(name, target, begin, lambda site: site.notes.append(f"{name} ends"))


def test_faults_happen_and_end() -> None:
    site, told = Site(), list[str]()
    course = Course(site, told.append, lambda: "all is well")
    course.fail(
        [
            Event(0.0, fault("a", "one"), 60.0),
            Event(0.0, fault("b", "one"), 0.0),
            Event(0.0, fault("c", "other", fails=True), 0.0),
            Event(0.0, fault("d", "other"), 0.0),
            Event(0.3, fault("e", "other"), 0.1),
        ]
    )
    assert site.notes == ["a", "d", "d ends", "e", "e ends", "a ends"]
    assert dict(course.happened) == {"a": 1, "d": 1, "e": 1}
    assert "c: could not: it is away" in told
    assert "all is well" in told


def test_the_end_is_waited_for_and_not_for_ever() -> None:
    course, told = Course(Site(), list[str]().append, lambda: "3 of 4"), iter((False, True))
    course.recover(lambda: next(told), 60.0)
    with pytest.raises(StageError, match=r"not recovered after 0 s: 3 of 4"):
        course.recover(lambda: False, 0.0)

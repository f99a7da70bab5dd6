"""Rooms stay small: no long files, no classes with many methods. Exceptions are listed and few."""

from __future__ import annotations

from tests.support.source import EVERYTHING, assert_none, sources

LONGEST_FILE = 350
MOST_METHODS = 20
MOST_EXCEPTIONS = 5

# file: why it may be longer
LONG_FILES: dict[str, str] = {}
# file::class: why it may have more methods
LARGE_CLASSES: dict[str, str] = {}


def test_files_are_short() -> None:
    long = {s.shown: n for s in sources(*EVERYTHING) if (n := s.lines) > LONGEST_FILE}
    assert_none(f"{n} lines: {file}" for file, n in long.items() if file not in LONG_FILES)
    assert set(LONG_FILES) <= set(long), "an exception that is not needed any more"


def test_classes_are_small() -> None:
    counted = {
        f"{source.shown}::{name}": methods
        for source in sources(*EVERYTHING)
        for name, methods in source.facts.classes
    }
    large = {name: methods for name, methods in counted.items() if methods > MOST_METHODS}
    assert_none(f"{n} methods: {name}" for name, n in large.items() if name not in LARGE_CLASSES)
    assert set(LARGE_CLASSES) <= set(large), "an exception that is not needed any more"


def test_exceptions_are_few_and_explained() -> None:
    assert len(LONG_FILES) + len(LARGE_CLASSES) <= MOST_EXCEPTIONS
    assert all((LONG_FILES | LARGE_CLASSES).values())

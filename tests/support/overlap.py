"""Several waits at once: for cases that need a process and a broker each, and hardly any work."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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

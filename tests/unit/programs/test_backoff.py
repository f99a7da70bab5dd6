"""Pauses between attempts: they grow up to a limit, differ, and never end a program."""

from itertools import pairwise

from protocol_spec.programs.backoff import Backoff, backoff_pause


def test_pauses_double_up_to_the_longest_and_are_drawn_from_the_upper_half() -> None:
    for failures, longest in enumerate([2.0, 4.0, 8.0, 16.0, 30.0, 30.0]):
        pauses = {backoff_pause(2.0, 30.0, failures) for _ in range(20)}
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def test_days_of_failures_change_nothing() -> None:
    """2.0**1024 is no float: a pause must not be calculated from any number of failures."""
    now = 0.0
    backoff = Backoff(lambda: now, 2.0, 300.0, 5.0)
    moments = [now]
    for _ in range(3_000):
        backoff.ended(was_connected=False)
        now += backoff.seconds_left
        moments.append(now)
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert all(149.0 <= pause <= 301.0 for pause in pauses[10:])
    backoff.connected()
    backoff.ended(was_connected=True)
    assert backoff.seconds_left <= 2.0, "a success is followed by the shortest pause"

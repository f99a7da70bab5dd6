"""What the page may spend, and how fresh its answers are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The page's limits; tests choose smaller ones."""

    cache_seconds: float = 1.0  # how long an answer is kept
    event_seconds: float = 1.0  # how often the data is checked for open pages
    alive_seconds: float = 15.0  # how often a silent event stream shows that it is alive
    readers: int = 64  # of events, at once
    readers_of_one: int = 32  # of these, from one address
    connections: int = 256  # at once
    connections_of_one: int = 128  # of these, from one address
    request_seconds: float = 10.0  # from the connection, or the last answer, to a whole request
    reading_seconds: float = 20.0  # how long an answer waits for somebody who does not read it
    rows: int = 50_000  # values times rounds in one answer, for its memory


LIMITS = Limits()

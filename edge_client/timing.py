"""How long the agent waits for what. Waiting decides when something is sent, never what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds. A pause that doubles is kept below its `longest`."""

    step: float = 1.0  # one turn of the loop, if nothing happens
    resend: float = 15.0  # after the first sending; doubles
    resend_longest: float = 900.0
    reconnect: float = 2.0  # after the first failure; doubles
    reconnect_longest: float = 300.0
    steady: float = 5.0  # a connection that lasted so long was worth having
    source_retry: float = 30.0  # after a draw that failed
    hear_state: float = 30.0  # at most, for the collector's word, before a draw in doubt

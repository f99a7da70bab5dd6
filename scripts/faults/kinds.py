"""The faults, one by one: what begins, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from faults.brokers import EMBEDDED
from faults.proxy import Proxy
from faults.site import Site
from testbed.processes import Process

HOUR: Final = 3_600.0
DECADE: Final = 10 * 365 * 86_400.0
SLOW: Final = 2_000.0  # bytes a second

LASTS_SECONDS: Final = (0.5, 12.0)

S = TypeVar("S")  # what faults happen to
Act = Callable[[Site], None]


@dataclass(frozen=True)
class Fault(Generic[S]):
    """One kind of fault. Those of one target do not happen at once."""

    name: str
    target: str
    begin: Callable[[S], None]
    end: Callable[[S], None] | None = None
    weight: float = 1.0
    lasts: tuple[float, float] = LASTS_SECONDS


def faults_for(kind: str) -> list[Fault[Site]]:
    """What can happen with a kind of broker."""
    found = [*_PROCESSES, *_CLOCKS, *_network("devices", lambda site: site.devices)]
    if kind != EMBEDDED:
        found += _network("collector's connection", lambda site: site.link)
    return found


def _network(target: str, of: Callable[[Site], Proxy | None]) -> list[Fault[Site]]:
    def on(act: Callable[[Proxy], None]) -> Act:
        def do(site: Site) -> None:
            proxy = of(site)
            if proxy is not None:
                act(proxy)

        return do

    def slow(proxy: Proxy) -> None:
        proxy.bytes_a_second = SLOW

    flow = on(Proxy.flow)
    return [
        Fault(f"{target}: reset", target, on(Proxy.reset)),
        Fault(f"{target}: half-open", target, on(Proxy.go_half_open)),
        Fault(f"{target}: stalled", target, on(Proxy.stall), flow, 2.0),
        Fault(f"{target}: slow", target, on(slow), flow),
    ]


def _clock(name: str, seconds: float) -> Act:
    return lambda site: site.set_clock(name, seconds)


def _process(
    name: str, target: str, of: Callable[[Site], Process], weight: float
) -> list[Fault[Site]]:
    def restart(site: Site) -> None:
        of(site).kill()
        of(site).start()

    def pause(site: Site) -> None:
        of(site).pause()

    def resume(site: Site) -> None:
        of(site).resume()

    return [
        Fault(f"{name}: killed", target, restart, None, weight),
        Fault(f"{name}: paused", target, pause, resume, weight),
    ]


# The embedded broker ends with the collector: both are one target.
_PROCESSES: Final = [
    *_process("collector", "collector", lambda site: site.collector, 2.0),
    Fault("broker: killed", "collector", Site.kill_broker, None, 2.0),
    Fault("broker: paused", "collector", Site.pause_broker, Site.resume_broker, 2.0),
    Fault("broker: state lost", "collector", Site.lose_broker_state, None, 0.5),
    *_process("agents", "agents", lambda site: site.agents[0].process, 1.0),
    *_process("agents with a wrong clock", "odd", lambda site: site.agents[1].process, 0.5),
]
# A collector whose clock is ahead seals early, which is said and not cured: so it goes back only.
_CLOCKS: Final = [
    Fault("collector: an hour back", "clock", _clock("collector", -HOUR), _clock("collector", 0)),
    Fault("agents: an hour ahead", "odd", _clock("odd", HOUR), _clock("odd", 0), 0.5),
    Fault("agents: an hour back", "odd", _clock("odd", -HOUR), _clock("odd", 0), 0.5),
    Fault("agents: ten years ahead", "odd", _clock("odd", DECADE), _clock("odd", 0), 0.25),
    Fault("agents: ten years back", "odd", _clock("odd", -DECADE), _clock("odd", 0), 0.25),
]

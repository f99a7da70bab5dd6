"""R23: no value, memo or report's bits in any log, error or exception, at any level.

A marked run: the true value and its memo are recognisable, everything is tried that can go wrong,
and all that was written to standard error, to logs or into exceptions is searched.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient, Policy
from edge_client.agent import Agent, ReadValue
from edge_client.statement import status_facts
from edge_client.store import Store
from protocol_spec import Manifest, Presence, Reporting, State, digest8
from protocol_spec.mechanisms import MECHANISMS
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.output import set_up_logging
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import (
    DAY,
    FUEL,
    QUICK,
    ROOM,
    ROOMY,
    WARMTH,
    Connections,
    FakeClock,
    Joined,
    MemoryTally,
    broken,
    colours,
    daily,
    draw_rounds,
    joined_agent,
    only,
    runner_of,
    tick_until,
)

SECRET = "marmalade"  # noqa: S105 - the device's true value
ATTRIBUTE = colours(256).replace('"c77"', f'"{SECRET}"')


def spellings(secret: bytes) -> set[str]:
    """How bytes may be written in text."""
    return {
        repr(secret)[2:-1],
        ", ".join(map(str, secret)),
        secret.hex(),
        secret.hex(" "),
        secret.hex().upper(),
        base64.b64encode(secret).decode().rstrip("="),
        str(int.from_bytes(secret)),
        bin(int.from_bytes(secret))[2:],
    }


def private(agent: Agent) -> set[str]:
    """Everything that may not be printed: the value, the memos, the bits of the reports."""
    name, length = only(agent).name, 256 // 8
    secrets = [memo.body for memo in agent.store.memos(name).values()]
    secrets += [row.payload[-length:] for row in agent.store.reports(name)]
    assert secrets
    return {SECRET}.union(*map(spellings, secrets))


def leaked(text: str, secrets: set[str]) -> list[str]:
    return sorted(secret for secret in secrets if secret in text)


def chain(error: BaseException | None) -> Iterator[str]:
    """An exception and all behind it, with attributes and arguments."""
    while error is not None:
        yield f"{error!r} {error} {vars(error)}"
        yield "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__


def test_the_search_finds_what_is_there(joined: Joined) -> None:
    """A negative control."""
    agent = joined(daily(attributes=ATTRIBUTE))
    draw_rounds(agent, 1, SECRET)
    memo = agent.store.memos(only(agent).name)[77].body
    for text in (f"{memo!r}", f"{list(memo)}", memo.hex(), f"value {SECRET}", memo.hex(" ")):
        assert leaked(text, private(agent)), text


def test_a_running_agent_logs_nothing_private(
    joined: Joined, state: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Draws, receipts, missed rounds, a failing source, a strict policy, a full disk, the end."""
    caplog.set_level(logging.DEBUG)
    campaign = daily(attributes=ATTRIBUTE, max_values=2, grace=3 * DAY)
    connections, broker = Connections(), MemoryBroker()
    tally = MemoryTally(broker, campaign)
    agent = joined(campaign, connect=connections)
    values: list[object] = [SECRET]
    runner = runner_of(agent, lambda _: values[0], make_link=broker.link)

    def next_round() -> None:
        clock.pass_time(DAY + QUICK.source_retry_seconds)
        runner.tick()

    for number in range(1, 4):
        next_round()
        tick_until(runner, lambda: len(tally.payloads) >= number)  # noqa: B023
    for values[0] in ("c5", f"{SECRET}-unknown", None, SECRET):
        next_round()
    agent.policy = Policy(max_eps_inf=0.1)
    next_round()
    agent.policy = ROOMY
    connections.refuse_writes()
    next_round()
    connections.refuse_writes(False)
    broker.publish(tally.topics.receipt(0, 0), b"not a receipt")
    closed = State(digest8(campaign), Presence.CLOSED, None)
    broker.publish(tally.topics.state, closed.encode(), retain=True)
    tick_until(runner, lambda: only(agent).status == "left")
    runner.close()
    assert {"INFO", "WARNING"} <= {record.levelname for record in caplog.records}
    assert "DISK_FULL" in {getattr(record, "state", "") for record in caplog.records}
    everything = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert leaked(everything + (state / "heartbeat").read_text(), private(agent)) == []


def test_exceptions_hold_nothing_private(joined: Joined, state: Path, clock: FakeClock) -> None:
    connections = Connections()
    agent = joined(daily(attributes=ATTRIBUTE), connect=connections)
    draw_rounds(agent, 2, SECRET)
    secrets, membership = private(agent), only(agent)

    def double_draw() -> None:
        for offset in (-DAY, DAY, 0):
            clock.now += offset
            agent.draw(membership, lambda _: SECRET)

    def read_only() -> None:
        clock.pass_time(DAY)
        connections.refuse_writes()
        agent.draw(only(agent), lambda _: SECRET)

    for attempt in (
        double_draw,
        read_only,
        lambda: Store(state, exclusive=True),
        lambda: agent.membership("x-00000000"),
    ):
        assert leaked("".join(chain(error_of(attempt))), secrets) == []


def error_of(attempt: Callable[[], object]) -> Exception:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is searched
        return error
    raise AssertionError("nothing went wrong")


@pytest.mark.parametrize(
    "text",
    [
        f'[sources]\ncolour = "{SECRET}"\n',
        f'[sources.colour]\nkind = "command"\ncommand = ["sh", "-c", "echo {SECRET}; exit 3"]\n',
        f'[sources.colour]\nvalue = "{SECRET}"\nother = 1\n',
        f'[sources.colour]\nvalue = ["{SECRET}"]\n',
        f'[sources.colour]\nvalue = "{SECRET}\n',
        "",
    ],
)
def test_the_command_line_prints_nothing_private(
    cli: Cli, asked: Path, join: Cli, state: Path, config: Path, text: str
) -> None:
    """At the debug level, whatever the owner types; only `report` may repeat it on stdout."""
    asked.write_text(manifest_text(attributes=ATTRIBUTE), encoding="utf-8")
    join("--yes")
    with EdgeClient(state) as client:
        client.agent.draw(client.find(), lambda _: SECRET)
        secrets = private(client.agent)
    config.write_text(text)
    for words in (
        ("report", "--value", f"colour={SECRET}", "--timeout", "0.1"),
        ("report", "--value", f"colour={SECRET}-unknown", "--timeout", "0.1"),
        ("report", "--value", SECRET),
        ("report", "--timeout", "0.1"),
        *((verb,) for verb in ("status", "doctor", "pause", "resume", "leave", "resume")),
        ("forget", "--yes", "--timeout", "0.1"),
    ):
        result = cli(*words, "--config", config, "--state-dir", state, "--log-level", "debug")
        printed = "" if words[0] == "report" else result.stdout
        assert leaked(result.stderr + printed, secrets) == [], words


# --- P1: log, heartbeat and status are the same, whatever the value and its source ----------------


ROUNDS = 3


def exploding(_attribute: str) -> object:
    raise ZeroDivisionError


SOURCES: dict[str, ReadValue] = {
    "first": lambda _: "wood",
    "last": lambda _: "other",
    "in a bin": lambda _: 21.5,
    "in another": lambda _: 20.5,
    "outside": lambda _: 99.0,
    "nonsense": lambda _: object(),
    "failing": broken,
    "raising": exploding,
}


def observed(
    place: Path, asked: Manifest, read: ReadValue, caplog: pytest.LogCaptureFixture
) -> object:
    """All that a daemon shows over some rounds: log, heartbeats, message sizes and status."""
    caplog.clear()
    clock, broker = FakeClock(), MemoryBroker()
    tally = MemoryTally(broker, asked)
    agent = joined_agent(place, clock, asked, device="device", broker="mqtt://localhost:1")
    runner = runner_of(agent, read, make_link=broker.link)
    beats: list[str] = []
    for _ in range(ROUNDS):
        for _turn in range(6):
            runner.tick(wait=0.0)
            beats.append((place / "heartbeat").read_text())
        clock.pass_time(DAY)
    runner.close()
    agent.store.close()
    with EdgeClient(place, clock=clock, policy=ROOMY, exclusive=False) as client:
        status = status_facts(client)
    sizes = [(device, len(payload)) for device, payload in tally.deliveries]
    records = [(r.levelname, r.getMessage(), getattr(r, "state", "")) for r in caplog.records]
    return records, beats, sizes, status


@pytest.mark.parametrize("reporting", MECHANISMS)
@pytest.mark.parametrize("attribute", [FUEL, ROOM, WARMTH])
def test_nothing_that_is_shown_depends_on_the_value(
    tmp_path: Path, reporting: Reporting, attribute: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P1: from the first round on, also of a source that never worked."""
    caplog.set_level(logging.DEBUG)
    asked = daily(reporting=reporting, attributes=attribute, count=3, each=3, max_values=2)
    turns: Iterator[object] = iter(("wood", 21.5, "marmalade", 99.0) * ROUNDS)
    sources: dict[str, ReadValue] = {**SOURCES, "alternating": lambda _: next(turns)}
    found = {n: observed(tmp_path / n, asked, read, caplog) for n, read in sources.items()}
    for name, shown in found.items():
        assert shown == found["first"], name


@pytest.mark.usefixtures("cli")  # which resets the logger
@pytest.mark.parametrize("terminal", [False, True])
def test_logs_are_json_lines_or_plain_ones_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    stream = io.StringIO()
    vars(stream)["isatty"] = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(2):  # setting up twice does not log everything twice
        set_up_logging("info")
    log = logging.getLogger("allomfree.edge")
    log.debug("a detail")
    log.warning("%s: größer", "disk", extra={"state": "DISK_FULL"})
    (line,) = stream.getvalue().splitlines()
    if terminal:
        assert line.endswith(" WARNING disk: größer")
    else:
        record = json.loads(line)
        assert record.pop("at").endswith("+00:00")
        assert record == {"level": "warning", "message": "disk: größer", "state": "DISK_FULL"}

"""R23: no value, memo or report's bits in any log, error or exception, at any level.

A marked run: the true value and its memo are recognisable, everything is tried that can go wrong,
and all that was written to standard error, to logs or into exceptions is searched.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
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
from testbed.brokers import Nats, Tally
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import (
    DAY,
    FUEL,
    NOBODY,
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
    """The ways in which bytes may find their way into text."""
    plain = repr(secret)[2:-1]
    numbers = ", ".join(map(str, secret))
    return {
        plain,
        numbers,
        secret.hex(),
        secret.hex(" "),
        secret.hex().upper(),
        base64.b64encode(secret).decode().rstrip("="),
        str(int.from_bytes(secret)),
        bin(int.from_bytes(secret))[2:],
    }


def private(agent: Agent) -> set[str]:
    """Everything that may not be told: the value, the memos, the bits of the reports."""
    name, length = only(agent).name, 256 // 8
    secrets = [memo.body for memo in agent.store.memos(name).values()]
    secrets += [row.payload[-length:] for row in agent.store.reports(name)]
    assert secrets
    return {SECRET}.union(*(spellings(secret) for secret in secrets))


def told(text: str, secrets: set[str]) -> list[str]:
    return sorted(secret for secret in secrets if secret in text)


def chain(error: BaseException | None) -> Iterator[str]:
    """An exception and all behind it, with attributes and arguments."""
    while error is not None:
        yield f"{error!r} {error} {vars(error)}"
        yield "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__


def test_the_search_finds_what_is_there(joined: Joined, clock: FakeClock) -> None:
    """A negative control: each spelling of a memo is found when it is told."""
    agent = joined(daily(attributes=ATTRIBUTE))
    draw_rounds(agent, clock, 1, SECRET)
    memo = agent.store.memos(only(agent).name)[77].body
    secrets = private(agent)
    for text in (
        f"{memo!r}",
        f"{list(memo)}",
        f"{memo.hex()}",
        f"value {SECRET}",
        f"{memo.hex(' ')}",
    ):
        assert told(text, secrets), text


def test_a_running_agent_tells_nothing(
    state: Path, clock: FakeClock, nats: Nats, caplog: pytest.LogCaptureFixture
) -> None:
    """Draws, receipts, missed rounds, a failing source, a strict policy, a full disk, the end."""
    caplog.set_level(logging.DEBUG)
    campaign = daily(attributes=ATTRIBUTE, slug="marked", max_values=2, grace=3 * DAY)
    connections, device = Connections(), os.urandom(8).hex()
    agent = joined_agent(
        state, clock, campaign, broker=nats.url, device=device, connect=connections
    )
    values: list[object] = [SECRET]
    runner = runner_of(agent, lambda _: values[0])

    def next_round() -> None:
        clock.pass_time(DAY + QUICK.source_retry)
        runner.tick()

    with Tally(nats.port, campaign) as tally:
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
        tally.publish(tally.topics.receipt(0, 0), b"not a receipt")
        closed = State(digest8(campaign), Presence.CLOSED, None)
        tally.publish(tally.topics.state, closed.encode(), retain=True)
        tick_until(runner, lambda: only(agent).status == "left")
        tally.publish(tally.topics.state, b"", retain=True)
    runner.close()
    levels = {record.levelname for record in caplog.records}
    assert {"INFO", "WARNING"} <= levels
    assert "DISK_FULL" in {getattr(record, "state", "") for record in caplog.records}
    everything = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert told(everything + (state / "heartbeat").read_text(), private(agent)) == []
    agent.store.close()


def test_exceptions_tell_nothing(joined: Joined, state: Path, clock: FakeClock) -> None:
    connections = Connections()
    agent = joined(daily(attributes=ATTRIBUTE), connect=connections)
    draw_rounds(agent, clock, 2, SECRET)
    secrets, membership = private(agent), only(agent)

    def ask(value: object) -> None:
        agent.draw(only(agent), lambda _: value)

    def double_draw() -> None:
        clock.now -= DAY
        agent.draw(membership, lambda _: SECRET)
        clock.now += DAY
        agent.draw(membership, lambda _: SECRET)
        agent.draw(membership, lambda _: SECRET)

    def read_only() -> None:
        clock.pass_time(DAY)
        connections.refuse_writes()
        ask(SECRET)

    for attempt in (
        double_draw,
        read_only,
        lambda: Store(state, exclusive=True),
        lambda: agent.membership("x-00000000"),
    ):
        assert told("".join(chain(error_of(attempt))), secrets) == []


def error_of(attempt: Callable[[], object]) -> Exception:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is searched
        return error
    raise AssertionError("nothing went wrong")


def commands(config: Path, state: Path) -> Iterator[tuple[object, ...]]:
    """Everything an owner may type, right and wrong."""
    here = ("--config", config, "--state-dir", state, "--log-level", "debug")
    for value in (SECRET, f"{SECRET}-unknown"):
        yield ("report", "--value", f"colour={value}", "--timeout", "0.1", *here)
    yield ("report", "--value", SECRET, *here)
    yield ("report", "--timeout", "0.1", *here)
    for verb in ("status", "doctor", "pause", "resume", "leave", "resume"):
        yield (verb, *here)
    yield ("forget", "--yes", "--timeout", "0.1", *here)


BAD_CONFIGURATIONS = [
    f'[sources]\ncolour = "{SECRET}"\n',
    f'[sources.colour]\nkind = "command"\ncommand = ["sh", "-c", "echo {SECRET}; exit 3"]\n',
    f'[sources.colour]\nvalue = "{SECRET}"\nother = 1\n',
    f'[sources.colour]\nvalue = ["{SECRET}"]\n',
    f'[sources.colour]\nvalue = "{SECRET}\n',
    "",
]


@pytest.mark.parametrize("text", BAD_CONFIGURATIONS)
def test_the_command_line_tells_nothing(cli: Cli, state: Path, tmp_path: Path, text: str) -> None:
    """Standard error at the debug level; the owner's own words on the command line stay there."""
    config, asked = tmp_path / "edge.toml", tmp_path / "asked.toml"
    asked.write_text(manifest_text(attributes=ATTRIBUTE), encoding="utf-8")
    config.write_text("")
    here = ("--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
    cli("join", *here)
    with EdgeClient(state) as client:
        client.agent.draw(client.find(), lambda _: SECRET)
        secrets = private(client.agent)
    config.write_text(text)
    for words in commands(config, state):
        result = cli(*words)
        shown = "" if words[0] == "report" else result.stdout
        assert told(result.stderr + shown, secrets) == [], words


# --- P1: log, heartbeat and service manager are told the same, whatever the value and its source.


ROUNDS = 3


def exploding(_attribute: str) -> object:
    raise ZeroDivisionError


def alternating() -> ReadValue:
    """In the domain, out of it, and gone, in turn."""
    turns: Iterator[object] = iter(("wood", 21.5, "marmalade", 99.0) * ROUNDS)
    return lambda _attribute: next(turns)


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


def told_by(
    place: Path, asked: Manifest, read: ReadValue, caplog: pytest.LogCaptureFixture
) -> object:
    """All that a daemon says over some rounds: records, beats, messages' sizes, and its status."""
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
def test_from_the_first_round_on(
    tmp_path: Path, reporting: Reporting, attribute: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a source that never worked."""
    caplog.set_level(logging.DEBUG)
    asked = daily(
        reporting=reporting, attributes=attribute, count=ROUNDS, each=ROUNDS, max_values=2
    )
    sources = {**SOURCES, "alternating": alternating()}
    found = {n: told_by(tmp_path / n, asked, read, caplog) for n, read in sources.items()}
    expected = found["first"]
    for name, said in found.items():
        assert said == expected, name


# --- Logs: one JSON object a line where nobody watches, plain lines on a terminal.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    yield
    logger = logging.getLogger("allomfree")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


def logged(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, level: str) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging(level)
    log = logging.getLogger("allomfree.edge")
    log.debug("a detail")
    log.info("größer")
    log.warning("%s: full", "disk", extra={"state": "DISK_FULL"})
    return stream.getvalue()


def test_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.loads(line) for line in logged(monkeypatch, io.StringIO(), "info").splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning"]
    assert [line["message"] for line in lines] == ["größer", "disk: full"]
    assert [line.get("state") for line in lines] == [None, "DISK_FULL"]
    assert all(line["at"].endswith("+00:00") for line in lines)


def test_plain_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = logged(monkeypatch, Terminal(), "debug").splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "DEBUG a detail",
        "INFO größer",
        "WARNING disk: full",
    ]


def test_setting_up_twice_does_not_say_everything_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_logging("info")
    assert len(logged(monkeypatch, io.StringIO(), "warning").splitlines()) == 1

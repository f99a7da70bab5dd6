"""kill -9 of the agent at every step of a round: one byte string for each, counted once.

The same check fails for an agent that takes the broker's acknowledgement for delivery.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest

from benchmarks.agent import calls, first, payloads, syncs_per_round, traced, why_not
from edge_client import EdgeClient
from edge_client.store import Store
from protocol_spec import Manifest, Reporting
from testbed.brokers import Broker, Mosquitto, Nats, Tally
from tests.support.agents import AgentProcess, Memory, Run, fresh_manifest, joined, report_once
from tests.support.campaigns import manifest
from tests.support.edge import many_values
from tests.support.harness import need
from tests.support.network import Peer, Proxy, Wire
from tests.support.power_cuts import Files, power_cuts, recorded, restore

REPEAT = 3

# What must be found again after a restart. A redrawn 64-bit answer is never the same by chance.
NOTHING = ("attribute drawn", "transaction begun", "committing")
ATTRIBUTE = ("joined", "memo drawn", "report drawn")
ALL = (
    "before the mark",
    "mark written",
    "report committed",
    "sending",
    "sent",
    "acknowledged",
    "receipt seen",
)


def campaign(**options: object) -> Manifest:
    names = ", ".join(f'"v{i:02}"' for i in range(64))
    tables = [
        f'[[attributes]]\nname = "{name}"\nquestion = "?"\nprotocol = "L-OSUE"\nvalues = [{names}]'
        for name in ("left", "right")
    ]
    return fresh_manifest(attributes="\n".join(tables), grace=86_400, **options)


def run_of(state: Path, asked: Manifest, url: str) -> Run:
    values = {attribute.name: "v07" for attribute in asked.attributes}
    return Run(str(state), asked.to_bytes().hex(), url, state.name, values)


def assert_counted_once(tally: Tally, devices: list[str], memories: list[Memory]) -> None:
    """Every counter is exactly 1, and exactly the remembered bytes were ever seen."""
    rounds = {number for memory in memories for number in memory.outbox}
    seen = {(device, str(number)): found for (device, number), found in tally.payloads.items()}
    everything = {(device, number) for device in devices for number in rounds}
    assert seen.keys() == everything, "a report was lost"
    for device, memory in zip(devices, memories, strict=True):
        for number, (payload, fate) in memory.outbox.items():
            assert seen[device, number] == {bytes.fromhex(payload)}
            assert fate == "counted"


def assert_survived(point: str, before: Memory) -> None:
    assert (before.attribute is not None) == (point not in NOTHING)
    assert len(before.memos) == len(before.charges) == len(before.outbox) == (point in ALL)


@pytest.mark.parametrize("point", NOTHING + ATTRIBUTE + ALL)
def test_killed_at(point: str, broker: Broker, tmp_path: Path) -> None:
    asked = campaign()
    states = [tmp_path / f"device-{i}" for i in range(REPEAT)]
    memories = []
    with Tally(broker.port, asked) as tally:
        for state in states:
            run = run_of(state, asked, broker.url)
            tally.receipts = point == "receipt seen"
            report_once(replace(run, die_at=point))
            tally.receipts = True
            again = report_once(run)
            assert_survived(point, again.before)
            if point in ALL:
                assert again.after.memos == again.before.memos
                assert [p for p, _ in again.after.outbox.values()] == [
                    p for p, _ in again.before.outbox.values()
                ]
            assert again.states == ["counted"]
            memories.append(again.after)
        assert_counted_once(tally, [state.name for state in states], memories)
        if point == "receipt seen":
            assert len(tally.deliveries) > REPEAT, "a lost receipt is resent, a duplicate"


ON_THE_WAY = ("sending", "sent", "acknowledged")


JOINING: dict[Reporting, tuple[str, ...]] = {
    "memoized": NOTHING,
    "once": (*NOTHING, "rounds drawn"),
    "hashed": NOTHING,
    "nested": NOTHING,
}
IN_THE_STORE = ("report drawn", "transaction begun", "committing")


@pytest.mark.parametrize("reporting", JOINING)
def test_killed_at_every_step_in_turn(reporting: Reporting, nats: Nats, tmp_path: Path) -> None:
    """Rounds, memos and answers are drawn once, and what is charged is what was drawn."""
    tables = many_values()
    asked = fresh_manifest(reporting=reporting, attributes=tables, each=500, grace=86_400)
    run = replace(run_of(tmp_path / "device", asked, nats.url), round=0)
    for point in JOINING[reporting]:
        assert report_once(replace(run, die_at=point)).before == Memory()
    report_once(replace(run, die_at="joined"))
    for point in () if reporting == "once" else ("memo drawn", *IN_THE_STORE, "before the mark"):
        assert report_once(replace(run, die_at=point)).before.memos == {}
    joined_with = report_once(replace(run, die_at=None, timeout=0.0)).before
    numbers = [n for n in joined_with.rounds or range(1000) if n > 0][:2]
    with Tally(nats.port, asked) as tally:
        report_once(run)
        for number, stored in zip(numbers, ("before the mark", "report committed")):
            drawn = "answer drawn" if reporting == "once" else "memo found"
            for point in (drawn, *IN_THE_STORE, stored, *ON_THE_WAY, "receipt seen"):
                tally.receipts = point == "receipt seen"
                killed = report_once(replace(run, round=number, die_at=point))
                assert killed.before.rounds == joined_with.rounds
            done = report_once(replace(run, round=number))
        assert_counted_once(tally, ["device"], [done.after])
    if reporting == "once":
        assert done.after.memos == {}
        assert done.after.charges == [asked.eps_1] * len(done.after.outbox)
        assert {int(number) for number in done.after.outbox} <= set(joined_with.rounds or ())
    else:
        first = report_once(replace(run, round=numbers[-1])).before
        assert done.after.memos == first.memos
        assert done.after.charges == [asked.eps_inf]
        assert len(done.after.memos) == 1


@pytest.mark.slow
def test_the_daemon_killed_at_any_time(nats: Nats, tmp_path: Path) -> None:
    """`allomfree-edge run` on rounds of a second, killed as soon as its log has a line."""
    asked = fresh_manifest(period=1, grace=3600)
    states = [tmp_path / f"device-{i}" for i in range(2)]
    with Tally(nats.port, asked) as tally, ThreadPoolExecutor(len(states)) as pool:
        list(pool.map(lambda state: kill_again_and_again(state, asked, nats.url), states))
    for state in states:
        with EdgeClient(state) as client:
            rows = client.store.reports(asked.campaign)
            assert len(client.store.ledger()) == 1
            assert len(client.store.memos(asked.campaign)) == 1
        seen = {number: p for (device, number), p in tally.payloads.items() if device == state.name}
        assert {len(payloads) for payloads in seen.values()} == {1}, "one draw per round, ever"
        kept = {row.round: {row.payload} for row in rows}  # older ones are pruned
        counted = {row.round for row in rows if row.fate == "counted"}
        assert counted <= seen.keys()
        assert all(kept[number] == p for number, p in seen.items() if number >= min(kept))


def kill_again_and_again(state: Path, asked: Manifest, url: str) -> None:
    config = joined(state, asked, url, device=state.name)
    for sign in ("running for", "connected to", "drawn and stored", "was counted"):
        with AgentProcess(config) as agent:
            agent.wait_for(sign)
            agent.process.kill()
    with AgentProcess(config) as agent:
        agent.wait_for("was counted", times=2)
        agent.terminate()


def forgetful(wire: Wire) -> None:
    """Acknowledges every report and drops it."""
    if wire.expect_connect():
        wire.connack()
        wire.serve(lambda published: wire.puback(published.mid))


def check(trust_puback: bool) -> AbstractContextManager[object]:
    """The same check must fail for an agent that takes the acknowledgement for delivery."""
    lost = pytest.raises(AssertionError, match="a report was lost")
    return lost if trust_puback else nullcontext()


@pytest.mark.parametrize("trust_puback", [False, True])
def test_an_acknowledgement_is_not_delivery(nats: Nats, tmp_path: Path, trust_puback: bool) -> None:
    """First a broker that acknowledges and forgets, then a real one, at the same address."""
    asked, state = campaign(), tmp_path / "device"
    with Peer(forgetful) as liar, Proxy(liar.port) as proxy, Tally(nats.port, asked) as tally:
        run = replace(run_of(state, asked, proxy.url), trust_puback=trust_puback)
        die_at, timeout = (None, 0.5) if trust_puback else ("acknowledged", 30)
        report_once(replace(run, die_at=die_at, timeout=timeout))
        proxy.upstream = nats.port
        done = report_once(run)
        with check(trust_puback):
            assert_counted_once(tally, [state.name], [done.after])


@pytest.mark.parametrize("trust_puback", [False, True])
def test_a_broker_without_persistence(
    mosquitto: Mosquitto, tmp_path: Path, trust_puback: bool
) -> None:
    """mosquitto forgets on kill -9 what it keeps for a collector that is away; receipts make good
    for it."""
    asked, state = campaign(), tmp_path / "device"
    with mosquitto as broker:
        run = replace(run_of(state, asked, broker.url), trust_puback=trust_puback)
        with Tally(broker.port, asked, keep_session=True):
            pass
        report_once(replace(run, die_at=None if trust_puback else "acknowledged"))
        broker.kill()
        broker.start()
        with Tally(broker.port, asked, keep_session=True) as tally:
            done = report_once(run)
            with check(trust_puback):
                assert_counted_once(tally, [state.name], [done.after])


# --- R08: memos are byte-identical over 200 restarts with kill -9 ---------------------------------


RESTARTS = 200
POINTS = (
    "report drawn",
    "before the mark",
    "memo found",
    "report committed",
    "sending",
    "sent",
    "acknowledged",
)


@pytest.mark.slow
def test_the_memos_survive(nats: Nats, tmp_path: Path) -> None:
    """Two values in turn, each round killed at another step: two memos, two charges, for ever."""
    names = ", ".join(f'"v{i:02}"' for i in range(64))
    table = f'[[attributes]]\nname = "a"\nquestion = "?"\nprotocol = "L-OSUE"\nvalues = [{names}]'
    asked = fresh_manifest(attributes=table, grace=10_000_000, max_values=2)
    run = Run(str(tmp_path / "device"), asked.to_bytes().hex(), nats.url, "device", {})
    first = replace(run, values={"a": "v01"}, round=0, timeout=0)
    report_once(first)
    memos = report_once(replace(first, values={"a": "v02"}, round=1)).after.memos
    assert len(memos) == 2
    for number, point in enumerate(islice(cycle(POINTS), RESTARTS), start=2):
        wanted = {"a": f"v{1 + number // 7 % 2:02}"}
        killed = report_once(replace(run, values=wanted, round=number, die_at=point))
        assert killed.before.memos == memos
    last = report_once(replace(run, values={"a": "v01"}, round=RESTARTS + 2, timeout=0))
    assert last.after.memos == memos
    assert last.after.charges == [asked.eps_inf] * 2


# --- F7: a power cut at any moment of a first start, a join and a first draw ----------------------


JOIN_AND_DRAW = """
import sys
from edge_client import EdgeClient
from protocol_spec import Manifest

state, manifest = sys.argv[1:]
asked = Manifest.from_bytes(bytes.fromhex(manifest))
with EdgeClient(state) as client:
    os.write(9, b"opened")
    invitation = client.invitation(manifest=asked, broker="mqtt://127.0.0.1:1")
    client.join(invitation, device="device")
    os.write(9, b"joined")
    client.agent.draw(client.find(), lambda _: "wood")
    os.write(9, b"sent")
"""


@pytest.fixture
def strace() -> None:
    need("strace")
    if reason := why_not():
        pytest.skip(reason)


def memory(directory: Path, asked: Manifest) -> tuple[object, ...]:
    """What a device has stored: attribute, memos, reports and charges."""
    with Store(directory, exclusive=True) as store:
        joined = [(m.device, m.attribute_index, m.last_round) for m in store.memberships()]
        reports = [row.payload for row in store.reports(asked.campaign)]
        return joined, store.memos(asked.campaign), reports, store.ledger()


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
def test_every_power_cut_of_a_first_start(tmp_path: Path) -> None:
    asked, state = manifest(), tmp_path / "state"
    events = recorded(JOIN_AND_DRAW, state, tmp_path / "strace", asked.to_bytes().hex())
    cuts, whole = power_cuts(state, events), memory(state, asked)
    unused: list[tuple[object, ...]] = [([], {}, [], []), ([("device", 0, -1)], {}, [], [])]
    outcomes = Counter[str]()
    for number, (note, files) in enumerate(cuts):
        restore(files, tmp_path / str(number))
        found = memory(tmp_path / str(number), asked)
        if note == "sent":
            assert found == whole, "what was sent is stored, for ever"
        else:
            assert found in (*unused, whole), note
        outcomes[note] += 1
    assert outcomes.keys() == {"", "opened", "joined", "sent"}
    assert outcomes.total() > 300


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
def test_the_model_finds_what_was_not_synced(tmp_path: Path) -> None:
    """A control: a name without its directory, a content without its file, the directory itself."""
    hasty = (
        "import sys\nos.mkdir(sys.argv[1])\n"
        "file = os.open(sys.argv[1] + '/memo', os.O_WRONLY | os.O_CREAT)\n"
        "os.write(file, b'answer' * 200)\n"
        "os.write(9, b'sent')\n"
        "os.fsync(file)\nos.write(9, b'file synced')\n"
        "os.fsync(os.open(sys.argv[1], os.O_RDONLY))\nos.write(9, b'name synced')\n"
        "os.fsync(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY))\nos.write(9, b'all synced')\n"
    )
    events = recorded(hasty, tmp_path / "state", tmp_path / "strace")
    cuts: dict[str, set[Files | None]] = {}
    for note, files in power_cuts(tmp_path / "state", events):
        cuts.setdefault(note, set()).add(files)
    whole: Files = (("memo", b"answer" * 200),)
    assert {None, (), (("memo", b""),), (("memo", bytes(1200)),), whole} <= cuts["sent"]
    assert (("memo", b"answer" * 100),) in cuts["sent"], "torn"
    assert cuts["name synced"] == {None, whole}
    assert cuts["all synced"] == {whole}


# --- I4, R13: the report is on the disk before its first byte is sent: two syncs, three at most --


ROUNDS = 4


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
def test_synced_before_sent(nats: Nats, tmp_path: Path) -> None:
    """What a running agent asked of the kernel over some rounds of a second."""
    asked, state = fresh_manifest(period=1, grace=3600), tmp_path / "state"
    agent = AgentProcess(joined(state, asked, nats.url))
    agent.command = traced(agent.command, tmp_path / "strace")
    with Tally(nats.port, asked), agent:
        agent.wait_for("was counted", times=ROUNDS)
        assert agent.terminate() == 0
    seen, reports = calls(tmp_path / "strace"), payloads(state)
    assert len(reports) >= ROUNDS - 1, "where many rounds were missed, the first is not kept"
    for payload in reports[:ROUNDS]:
        written = first(seen, "pwrite64", "state.db-wal", payload)
        synced = first(seen, "fdatasync", "state.db-wal", after=written)
        sent = first(seen, "sendto", "socket:", payload)
        assert written < synced < sent
        assert seen[synced].rest.endswith("= 0")
        unsynced = [c for c in seen[synced:sent] if c.name == "pwrite64" and "-wal" in c.where]
        assert not unsynced
    before, in_all = zip(*syncs_per_round(seen, reports[:ROUNDS]), strict=True)
    assert set(before) == {2}
    assert max(in_all) <= 3  # one receipt may be for several rounds


@pytest.mark.usefixtures("strace")
def test_the_trace_shows_a_send_before_a_sync(tmp_path: Path) -> None:
    """A control: a program that sends first and syncs afterwards."""
    hasty = (
        "import os, socket, sys\n"
        "mine, theirs = socket.socketpair()\n"
        "mine.send(b'report')\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "os.pwrite(file, b'report', 0)\n"
        "os.fdatasync(file)\n"
    )
    output = tmp_path / "strace"
    command = [sys.executable, "-c", hasty, str(tmp_path / "state.db-wal")]
    subprocess.run(traced(command, output), check=True)
    seen = calls(output)
    written = first(seen, "pwrite64", "state.db-wal", b"report")
    assert first(seen, "sendto", "socket:", b"report") < written
    assert first(seen, "fdatasync", "state.db-wal", after=written) > written

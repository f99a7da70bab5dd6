"""State that is missing, damaged, replaced or rolled back is refused, never silently recreated;
`forget` erases it, and `forget --lost` keeps what the lost one may have spent (I3, I14, R25)."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from edge_client import Credentials, EdgeClient
from edge_client.agent import Agent, Due, Wait, due
from edge_client.client import accept_loss
from edge_client.errors import (
    CampaignProblem,
    PolicyRefusal,
    StateBusy,
    StateExposed,
    StateLost,
    StateOfOtherVersion,
    StorageFailure,
)
from edge_client.policy import Policy
from edge_client.records import Invitation, Membership
from edge_client.store import KEPT_FOR_SHOW, Store
from edge_client.store.highwater import SLOT
from edge_client.store.opening import RECOVER, UNRELEASED_ID
from protocol_spec.programs.settings import parse_broker
from tests.support.edge import (
    COLOUR,
    DAY,
    FUEL,
    NOBODY,
    Connections,
    FakeClock,
    Joined,
    agree,
    as_killed,
    charge,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
    rows,
)

PAGE = 4096
Damage = Callable[[Path], object]


@pytest.fixture
def used(joined: Joined, state: Path, clock: FakeClock) -> Path:
    """A state directory with a week of reports, properly closed."""
    agent = joined(daily())
    draw_rounds(agent, 7)
    agent.store.close()
    return state


def database(state: Path) -> Path:
    return state / "state.db"


def contents(state: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in state.iterdir() if p.name in ("state.db", "highwater")}


def truncate(size: int) -> Damage:
    return lambda state: database(state).write_bytes(database(state).read_bytes()[:size])


def overwrite(offset: int, content: bytes) -> Damage:
    def damage(state: Path) -> None:
        with database(state).open("r+b") as file:
            file.seek(offset)
            file.write(content)

    return damage


def write_mark(content: bytes) -> Damage:
    return lambda state: (state / "highwater").write_bytes(content)


def replace_by_another_device(state: Path) -> None:
    other = state.parent / "other"
    agent = joined_agent(other, FakeClock(), daily())
    draw_rounds(agent, 20)
    agent.store.close()
    shutil.copy(database(other), database(state))


def replace_by_another_program(pragma: str = "user_version = 0") -> Damage:
    def damage(state: Path) -> None:
        database(state).unlink()
        with closing(sqlite3.connect(database(state))) as db:
            db.execute("CREATE TABLE bookmarks (url TEXT)")
            db.execute(f"PRAGMA {pragma}")
        database(state).chmod(0o600)

    return damage


def lose_both(state: Path) -> None:
    """The mark that cannot be read shows that there was a state."""
    database(state).unlink()
    (state / "highwater").write_bytes(b"\xa5" * 100)


def lose_both_but_a_log(state: Path) -> None:
    database(state).unlink()
    (state / "highwater").unlink()
    (state / "state.db-wal").write_bytes(b"left over")
    (state / "state.db-wal").chmod(0o600)


DAMAGES: dict[str, Damage] = {
    "missing": lambda state: database(state).unlink(),
    "empty": truncate(0),
    "one byte": truncate(1),
    "header only": truncate(100),
    "one page": truncate(PAGE),
    "half": truncate(5 * PAGE),
    "torn page": truncate(5 * PAGE + 100),
    "garbage header": overwrite(0, b"\xa5" * 100),
    "zeroed header": overwrite(0, bytes(100)),
    "zeroed first page": overwrite(0, bytes(PAGE)),
    "text": lambda state: database(state).write_text("restored from nowhere\n" * 400),
    "another device's": replace_by_another_device,
    "another program's": replace_by_another_program(),
    "other tables": replace_by_another_program("user_version = 1"),
    "no version": overwrite(60, bytes(4)),
    "no mark": lambda state: (state / "highwater").unlink(),
    "empty mark": write_mark(b""),
    "zeroed mark": write_mark(bytes(2 * SLOT)),
    "garbage mark": write_mark(b"\xa5" * 2 * SLOT),
    "both, with a damaged mark": lose_both,
    "both, with a log left over": lose_both_but_a_log,
}


def assert_refused(state: Path) -> None:
    for exclusive in (True, False, True):
        with pytest.raises(StateLost) as refused:
            Store(state, exclusive=exclusive)
        message = str(refused.value)
        assert str(database(state)) in message
        assert RECOVER in message
        assert "nothing was drawn or sent" in message


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_and_changed_by_nothing(used: Path, damage: str) -> None:
    DAMAGES[damage](used)
    before = contents(used)
    assert_refused(used)
    assert contents(used) == before


def test_any_zeroed_page_is_noticed(used: Path) -> None:
    whole = database(used).read_bytes()
    assert len(whole) > 6 * PAGE
    for offset in range(0, len(whole), PAGE):
        overwrite(offset, bytes(PAGE))(used)
        assert_refused(used)
        database(used).write_bytes(whole)
    Store(used, exclusive=True).close()


def damaged(content: bytes, rng: Random) -> bytes:
    """Some flipped bits, a zeroed stretch, or a lost end."""
    offset = rng.randrange(len(content))
    kind = rng.choice(["bits", "zeros", "end"])
    if kind == "end":
        return content[:offset]
    if kind == "zeros":
        return content[:offset] + bytes(512) + content[offset + 512 :]
    flipped = bytearray(content)
    for _ in range(rng.choice([1, 4, 30])):
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_refused_by_name_or_has_no_effect(
    used: Path, clock: FakeClock, tmp_path: Path, seed: int
) -> None:
    """No other error, now or later. (A bit that flips inside of a number is not noticed.)"""
    rng, outcomes = Random(seed), Counter[str]()
    for number in range(60):
        state = as_killed(used, tmp_path / f"{number}")
        file = state / rng.choice(["state.db", "state.db", "highwater"])
        file.write_bytes(damaged(file.read_bytes(), rng))
        try:
            agent = joined_agent(state, clock)
        except (StateLost, StateOfOtherVersion) as refused:
            outcomes[type(refused).__name__] += 1
            continue
        agent.store.reports(only(agent).name)
        agent.store.close()
    assert outcomes["StateLost"] > 10, f"seed {seed}: {outcomes}"


def test_an_old_copy_is_refused_and_the_newest_accepted(
    joined: Joined, used: Path, tmp_path: Path
) -> None:
    backup = database(used).read_bytes()
    agent = joined()
    draw_rounds(agent, 1)
    agent.store.close()
    newest, before = as_killed(used, tmp_path / "newest"), rows(used)
    database(used).write_bytes(backup)
    assert_refused(used)
    shutil.copy(database(newest), database(used))
    Store(used, exclusive=True).close()
    assert rows(used) == before


def test_an_old_copy_of_a_running_store_is_refused(
    agent: Agent, state: Path, tmp_path: Path
) -> None:
    """Database and log copied together from an earlier moment, as a backup program does."""
    draw_rounds(agent, 3)
    backup = as_killed(state, tmp_path / "backup")
    draw_rounds(agent, 1)
    killed = as_killed(state, tmp_path / "killed")
    Store(as_killed(killed, tmp_path / "control"), exclusive=True).close()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        shutil.copy(backup / name, killed / name)
    assert_refused(killed)


@pytest.mark.parametrize("kept", [0, 32, 2 * PAGE])
def test_a_log_that_lost_its_end_is_a_rollback(
    agent: Agent, state: Path, tmp_path: Path, kept: int
) -> None:
    draw_rounds(agent, 3)
    killed = as_killed(state, tmp_path / "killed")
    log = killed / "state.db-wal"
    assert log.stat().st_size > 10 * PAGE
    log.write_bytes(log.read_bytes()[:kept])
    assert_refused(killed)


@pytest.mark.parametrize(
    ("pragma", "message"),
    [
        ("user_version = 99", r"a later version \(schema 99.*\. Upgrade the agent"),
        (f"application_id = {UNRELEASED_ID}", r"before the first release.*another --state-dir"),
    ],
)
def test_the_state_of_another_version_is_refused_untouched(
    used: Path, clock: FakeClock, pragma: str, message: str
) -> None:
    with closing(sqlite3.connect(database(used))) as db:
        db.execute(f"PRAGMA {pragma}")
    before = contents(used)
    for attempt in (
        lambda: Store(used, exclusive=True).close(),
        lambda: accept_loss(used, Policy(), clock),
    ):
        with pytest.raises(StateOfOtherVersion, match=message) as refused:
            attempt()
        assert "nothing was changed, drawn or sent" in str(refused.value)
        assert contents(used) == before


def test_a_first_start_that_was_killed_is_no_loss(state: Path) -> None:
    """Nothing had been drawn, so nothing can be lost."""
    Store(state, exclusive=True).close()
    (state / "highwater").unlink()
    Store(state, exclusive=True).close()


# --- `forget --lost`: an empty state that stays charged for all that the lost one may have revealed


CAMPAIGN = daily(max_values=2, attributes=FUEL + FUEL.replace("fuel", "stove"), eps_inf=2.0)
GENEROUS = Policy(lifetime_budget=100.0, total_budget=100.0, max_values=2)


@pytest.fixture
def before(joined: Joined, clock: FakeClock) -> Membership:
    """The membership of a device that drew two memos: 4 are charged to its one attribute."""
    agent = joined(CAMPAIGN)
    draw_rounds(agent, 1, "wood")
    draw_rounds(agent, 1, "gas")
    member = only(agent)
    agent.store.close()
    return member


def charged(state: Path) -> dict[str, float]:
    with Store(state, exclusive=True) as store:
        sources = {line.source for line in store.ledger()}
        return {source: store.charged(source) for source in sources}


def lose_database(state: Path) -> None:
    database(state).unlink()


def lose_mark(state: Path) -> None:
    (state / "highwater").unlink()


def test_charges_name_and_attribute_outlive_the_database(
    joined: Joined, before: Membership, state: Path, clock: FakeClock
) -> None:
    lose_database(state)
    assert accept_loss(state, Policy(), clock) == {before.attribute.name: 4.0}
    agent = joined(CAMPAIGN)
    after = only(agent)
    assert (after.device, after.attribute_index) == (before.device, before.attribute_index)
    draw(agent, "wood")  # a second memo for the same value: it is charged once more
    assert agent.store.charged(before.attribute.name) == 6.0


def test_after_a_loss_only_the_answers_that_are_left_need_a_budget(
    joined: Joined, state: Path, clock: FakeClock
) -> None:
    """Where no memo is drawn again: 2 of 4 answers were given, and 2 are left of eps_inf = 2."""
    campaign = daily(reporting="once", count=4, each=4)
    agent = joined(campaign)
    draw_rounds(agent, 2)
    agent.store.close()
    lose_database(state)
    assert accept_loss(state, Policy(), clock) == {"fuel": 1.0}
    agent = joined(policy=Policy(lifetime_budget=1.9))
    with pytest.raises(PolicyRefusal, match="needs 1 more of source 'fuel', and 1 of"):
        agree(agent, campaign)
    agent.policy = Policy(lifetime_budget=2.0)
    agree(agent, campaign)


@pytest.mark.parametrize(("allowed", "booked"), [(1.0, 4.0), (4.0, 4.0), (5.0, 5.0)])
def test_a_loss_of_unknown_size_books_4_or_what_the_policy_allows(
    joined: Joined, before: Membership, state: Path, clock: FakeClock, allowed: float, booked: float
) -> None:
    """I14: the database may be an old copy, so what it knows is the least that was spent."""
    source, policy = before.attribute.name, Policy(max_eps_inf=allowed)
    everything = as_killed(state, state.with_name("everything"))
    lose_mark(state)
    assert accept_loss(state, policy, clock) == {source: 4.0, "*": booked}
    agent = joined(CAMPAIGN, policy=GENEROUS)
    assert agent.store.charged(source) == 4.0 + booked
    assert agent.store.charged("anything else") == booked
    assert only(agent).attribute_index == before.attribute_index
    lose_both(everything)
    assert accept_loss(everything, policy, clock) == {"*": booked}
    with Store(everything, exclusive=True) as store:
        assert store.charged("fuel") == store.charged("stove") == booked


def test_losses_add_up(joined: Joined, before: Membership, state: Path, clock: FakeClock) -> None:
    """Twice lost, also before anything new was drawn: nothing is forgotten by it."""
    for _ in range(2):
        lose_database(state)
        accept_loss(state, Policy(), clock)
    assert charged(state) == {before.attribute.name: 4.0}
    for _ in range(2):
        lose_mark(state)
        accept_loss(state, Policy(), clock)
    assert charged(state) == {before.attribute.name: 12.0, "*": 8.0}
    agent = joined(CAMPAIGN, policy=GENEROUS)
    assert only(agent).attribute_index == before.attribute_index


def test_a_rolled_back_database_counts_for_what_the_mark_knows(
    joined: Joined, before: Membership, state: Path, clock: FakeClock
) -> None:
    backup = database(state).read_bytes()
    agent = joined()
    charge(agent, before.attribute.name, 1.0)
    agent.store.close()
    database(state).write_bytes(backup)
    assert accept_loss(state, Policy(), clock) == {before.attribute.name: 5.0}


def test_only_a_lost_state_is_replaced(used: Path, clock: FakeClock) -> None:
    """Not a sound one, nor one that an agent holds or that others can read."""
    whole = contents(used)
    with pytest.raises(CampaignProblem, match="is sound; nothing was changed"):
        accept_loss(used, Policy(), clock)
    assert contents(used) == whole
    with Store(used, exclusive=True), pytest.raises(StateBusy):
        accept_loss(used, Policy(), clock)
    lose_database(used)
    used.chmod(0o755)
    with pytest.raises(StateExposed):
        accept_loss(used, Policy(), clock)


class Killed(BaseException):
    """The process ends here."""


POINTS = (
    "left-over read",
    "left-over marked",
    "state.db removed",
    "state.db-wal removed",
    "state.db-shm removed",
    "empty memory opened",
    "transaction begun",
    "committing",
    "before the mark",
    "mark written",
    "inherited",
)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("lose", [lose_database, lose_mark, lose_both])
def test_a_kill_in_between_forgets_nothing(
    before: Membership, state: Path, clock: FakeClock, lose: Damage, point: str
) -> None:
    """I14: between any two steps, it is refused as lost, and the next attempt keeps as much."""
    undisturbed, points = state.with_name("undisturbed"), list[str]()
    lose(as_killed(state, undisturbed))
    expected = accept_loss(undisturbed, Policy(), clock, points.append)
    assert tuple(points) == POINTS, "these are all there are"
    lose(state)

    def kill(passed: str) -> None:
        if passed == point:
            raise Killed

    with pytest.raises(Killed):
        accept_loss(state, Policy(), clock, kill)
    try:
        Store(state, exclusive=True).close()
    except StateLost:
        assert accept_loss(state, Policy(), clock) == expected
    assert charged(state) == {
        source: epsilon + (0.0 if source == "*" else expected.get("*", 0.0))
        for source, epsilon in expected.items()
    }


def test_a_round_reported_before_the_loss_is_not_reported_again(
    joined: Joined, state: Path, clock: FakeClock
) -> None:
    """I3: the mark remembers the round, so a rejoin within it draws nothing."""
    agent = joined(CAMPAIGN)
    draw(agent)
    agent.store.close()
    lose_database(state)
    accept_loss(state, Policy(), clock)
    agent = joined(CAMPAIGN)
    assert due(only(agent), clock) is Wait.DRAWN
    clock.pass_time(DAY)
    allowed = due(only(agent), clock)
    assert isinstance(allowed, Due)
    assert allowed.round == 1


# --- R25: `forget` leaves no byte of what was answered; what was spent stays spent ----------------


WINDOW = 12


@pytest.fixture
def answered(joined: Joined, clock: FakeClock, connections: Connections) -> Agent:
    """Two memos of 128 bytes, more reports than are kept for show, and a restart."""
    agent = joined(daily(attributes=COLOUR, max_values=2, count=3650))
    draw_rounds(agent, KEPT_FOR_SHOW, "c17")
    agent.store.close()
    agent = joined(connect=connections)
    draw_rounds(agent, KEPT_FOR_SHOW, "c500")
    return agent


def markers(agent: Agent, payloads: list[bytes]) -> set[bytes]:
    """Every stretch of twelve bytes of a memo or report, the name and the manifest's words."""
    membership = only(agent)
    bodies = [memo.body for memo in agent.store.memos(membership.name).values()]
    found = {membership.device.encode(), membership.manifest.purpose.encode()}
    for secret in (*bodies, *payloads):
        found |= {secret[i : i + WINDOW] for i in range(0, len(secret) - WINDOW, WINDOW // 2)}
    return found


def files_with(markers: set[bytes], state: Path) -> set[str]:
    files = {path.name: path.read_bytes() for path in state.iterdir()}
    return {name for name, content in files.items() if any(m in content for m in markers)}


def test_no_marker_is_left_in_any_file(answered: Agent, state: Path) -> None:
    payloads = draw_rounds(answered, KEPT_FOR_SHOW, "c17")
    answered.store.finish(only(answered).name, dict.fromkeys(range(50), "counted"))
    wanted = markers(answered, payloads)
    assert {"state.db-wal", "highwater"} <= files_with(wanted, state)
    answered.store.forget(only(answered), 0)
    assert files_with(wanted, state) == set()
    answered.store.close()
    assert files_with(wanted, state) == set()
    Store(state, exclusive=True).close()
    assert files_with(wanted, state) == set()


def test_no_marker_is_left_next_to_another_reader(answered: Agent, state: Path) -> None:
    """With another process at the store, closing does not remove the log: it must be emptied."""
    wanted = markers(answered, [])
    with Store(state, exclusive=False):
        answered.store.forget(only(answered), 0)
        assert (state / "state.db-wal").exists()
        assert files_with(wanted, state) == set()


def test_reports_that_are_no_longer_kept_are_erased(joined: Joined, state: Path) -> None:
    """Not only unlinked: their bytes are gone from the database long before `forget`."""
    agent = joined(daily(attributes=COLOUR))
    first = draw_rounds(agent, 5, "c1")
    agent.store.finish(only(agent).name, dict.fromkeys(range(5), "counted"))
    draw_rounds(agent, KEPT_FOR_SHOW + 1, "c1")
    agent.store.close()
    assert files_with({payload[-WINDOW:] for payload in first}, state) == set()


def test_the_ledger_stays_and_a_rejoin_draws_and_charges_again(answered: Agent) -> None:
    store, membership = answered.store, only(answered)
    ledger, memos = store.ledger(), store.memos(membership.name)
    store.forget(membership, 7)
    assert store.memberships() == []
    assert store.ledger() == ledger
    assert store.decisions(membership.name) == [(7, "forgotten")]
    agree(answered, membership.manifest)
    draw(answered, "c17")
    assert store.charged("colour") == 3 * membership.manifest.eps_inf
    assert store.memos(membership.name)[17].body != memos[17].body
    assert only(answered).device != membership.device


def test_forgetting_gives_no_fresh_budget(joined: Joined) -> None:
    """12 pay for six memos of 2, and no more."""
    agent = joined()
    for _ in range(6):
        agree(agent, daily())
        draw_rounds(agent, 1)
        agent.store.forget(only(agent), 0)
    with pytest.raises(PermissionError, match="12 of its lifetime budget of 12 is already used"):
        agree(agent, daily())


def test_another_campaign_of_the_same_device_is_kept(joined: Joined) -> None:
    """A user name is the device's name in every campaign: forgetting one finds it in the other."""
    agent = joined()
    for slug in ("one", "two"):
        agree(agent, daily(slug=slug), device="living-room-heater")
    one, two = agent.store.memberships()
    for membership in (one, two):
        agent.draw(membership, lambda _: "wood")
    agent.store.forget(one, 0)
    assert [m.name for m in agent.store.memberships()] == [two.name]
    assert len(agent.store.memos(two.name)) == 1


@pytest.mark.parametrize("device", ["a", "device", "state"])
def test_common_bytes_and_names_are_no_false_alarm(joined: Joined, device: str) -> None:
    """A memo of zeros and a common word are in every database; they prove nothing."""
    agent = joined(
        daily(attributes=COLOUR),
        device=device,
        entropy=lambda size: b"\xff" * size if size > 8 else bytes(size),
    )
    draw(agent, "c0")
    assert not any(agent.store.memos(only(agent).name)[0].body)
    agent.store.forget(only(agent), 0)


def test_traces_that_cannot_be_removed_are_named(
    answered: Agent, state: Path, connections: Connections
) -> None:
    """A copy in the same directory, and a reader that keeps the log from being emptied."""
    (state / "my-backup.db").write_bytes(database(state).read_bytes())
    (state / "a-directory").mkdir()
    connections.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(database(state))) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM memo").fetchall()
        with pytest.raises(StorageFailure, match=r"traces remain in my-backup\.db, state\.db"):
            answered.store.forget(only(answered), 0)
    assert answered.store.memberships() == []


def test_a_forgotten_device_joins_again_under_its_name_only_if_asked_to(
    state: Path, clock: FakeClock
) -> None:
    """A4: the collector counts no report under a forgotten name, so it would be charged for
    nothing. A device without a user name gets a new one."""
    campaign = Invitation(daily(), parse_broker(NOBODY), "allomfree")
    with EdgeClient(state, clock=clock, credentials=Credentials("heater-1", "secret")) as client:
        client.join(campaign)
        client.store.forget(client.find(), 7)
        for attempt in (
            lambda: client.join(campaign),
            lambda: client.join(campaign, device="heater-2"),
            lambda: client.invitation(manifest=campaign.manifest, broker=NOBODY),
        ):
            with pytest.raises(CampaignProblem, match=r"forgotten .*Nothing was .*join --again"):
                attempt()
        assert client.memberships() == []
        client.invitation(manifest=campaign.manifest, broker=NOBODY, again=True)
        assert client.join(campaign, again=True).device == "heater-1"
        client.join(campaign)
    with EdgeClient(state.with_name("unnamed"), clock=clock) as client:
        first = client.join(campaign)
        client.store.forget(first, 7)
        assert client.join(campaign).device != first.device

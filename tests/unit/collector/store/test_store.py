"""The contract of every engine: counted once, the first stays, nothing is half-written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from collector import ingest
from collector.data_dir import DeviceKey
from collector.errors import CollectorError, NewerSchema, StorageFailure, UnknownCampaign
from collector.links import Message
from collector.records import POOLED, Campaign, Candidate, Refusal
from collector.rounds import sealing
from collector.store import Store
from collector.store.common import count_bodies
from protocol_spec import (
    BodyFormat,
    Outcome,
    Report,
    Result,
    Topics,
    decode_report,
    decode_result,
    digest8,
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.collector import (
    COLOUR,
    FIRST,
    FUEL,
    FUEL_INDEX,
    HOUR,
    TOWN,
    TOWN_INDEX,
    Device,
    asked,
    candidate,
    counts_of,
    open_campaigns,
    random_counts,
    recount,
    seal,
    three_questions,
)
from tests.support.databases import Engine, snapshot, withdraw
from tests.support.hostile import A, B

ACCEPTED, DUPLICATE, CONFLICT = Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.CONFLICT
LATE, CHANGED = Outcome.LATE, Outcome.ATTRIBUTE_CHANGED


# --- once (I8), and the first stays (I9) --------------------------------------------------------
# What a device sends after a report of round 3 about FUEL: round, attribute, body.
SECOND_REPORTS = {
    "the same": ((3, FUEL, 2), DUPLICATE),
    "other bits": ((3, FUEL, 3), CONFLICT),
    "another attribute": ((3, COLOUR, 2), CONFLICT),
    "another attribute in another round": ((2, COLOUR, 2), CHANGED),
}


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
@pytest.mark.parametrize("case", SECOND_REPORTS)
def test_the_first_report_stays(
    store: Store, campaign: Campaign, engine: Engine, case: str, together: bool
) -> None:
    """Also after a restart (I8, I9, I11)."""
    (number, attribute, body), expected = SECOND_REPORTS[case]
    first = candidate(campaign, 1, 3, body=2)
    second = candidate(campaign, 1, number, attribute, body)
    batches = [[first, second]] if together else [[first], [second]]
    assert [o for batch in batches for o in store.commit(batch, [])] == [ACCEPTED, expected]
    with closing(engine.open()) as again:
        assert list(again.commit([second, first], [])) == [expected, DUPLICATE]
        assert counts_of(again, campaign, 3) == {FUEL: [0, 0, 1, 0]}
        assert counts_of(again, campaign, 2) == {}


def test_two_connections_at_once_count_every_report_once(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    """R21: the unique key decides, not who looked first."""
    batches = [
        [candidate(campaign, d, body=d) for d in range(b, b + 40)] for b in range(0, 400, 20)
    ]
    start, outcomes = threading.Barrier(2), list[Outcome]()

    def work() -> None:
        with closing(engine.open()) as mine:
            start.wait()
            for batch in batches:
                outcomes.extend(mine.commit(batch, []))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    devices = {c.device for batch in batches for c in batch}
    assert outcomes.count(ACCEPTED) == store.tallies(campaign.id, 0)[FUEL].n == len(devices)
    assert store.received() == sum(store.outcomes().values()) == len(outcomes)


# --- one attribute for life (I11) ---------------------------------------------------------------
@pytest.mark.parametrize("min_reports", [1, 50], ids=["released", "withheld"])
def test_an_attribute_cannot_change_after_a_sealing_or_a_restart(
    store: Store, engine: Engine, min_reports: int
) -> None:
    campaign = store.open_campaign(three_questions(min_reports=min_reports), FIRST)
    store.commit([candidate(campaign, 1), candidate(campaign, 2, 4)], [])
    seal(store, campaign, 0)
    changed, kept = candidate(campaign, 1, 1, attribute=TOWN), candidate(campaign, 1, 1)
    assert list(store.commit([changed, kept], [])) == [CHANGED, ACCEPTED]
    with closing(engine.open()) as again:
        for device in (1, 2):
            other = candidate(campaign, device, 5, attribute=TOWN)
            assert list(again.commit([other], [])) == [CHANGED]


# --- as many rounds, and as high a level, as a device can have ------------------------------------
TOO_MANY = Outcome.TOO_MANY


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "one by one"])
def test_a_device_answers_in_as_many_rounds_as_it_was_asked_to(
    store: Store, engine: Engine, together: bool
) -> None:
    """Whichever rounds are sealed; a report that was counted is still only a duplicate."""
    campaign = store.open_campaign(asked("once", min_reports=3, each=2), FIRST)
    reports = [candidate(campaign, 1, number) for number in range(3)]
    batches = [reports] if together else [[report] for report in reports]
    found = [outcome for batch in batches for outcome in store.commit(batch, [])]
    assert found == [ACCEPTED, ACCEPTED, TOO_MANY]
    for number in range(2):
        seal(store, campaign, number)
        again = [*reports[number + 1 :], candidate(campaign, 2, 2)]
        expected = [DUPLICATE, TOO_MANY, ACCEPTED] if number == 0 else [TOO_MANY, DUPLICATE]
        assert list(store.commit(again, [])) == expected
    with closing(engine.open()) as other:
        assert list(other.commit([candidate(campaign, 1, 7)], [])) == [TOO_MANY]
        assert other.outcomes(campaign.id, 2)[TOO_MANY] == 3


def nested_report(campaign: Campaign, device: int, number: int, level: int) -> Candidate:
    body = campaign.manifest.mechanisms[0].counted.encode(1)
    return candidate(campaign, device, number, 0, bytes((level - 1,)) + body)


def test_a_level_rises_by_one_a_round_at_most(store: Store) -> None:
    """Whoever was first heard at level 1 in round 1 is at level 2 in round 2, or still at 1."""
    campaign = store.open_campaign(asked("nested"), FIRST)
    store.commit([nested_report(campaign, d, 1, 1) for d in range(2)], [])
    for number in range(2):
        seal(store, campaign, number)
    batch = [(0, 3), (1, 2), (2, 3)]
    outcomes = store.commit([nested_report(campaign, d, 2, level) for d, level in batch], [])
    assert list(outcomes) == [Outcome.BAD_LEVEL, ACCEPTED, ACCEPTED]


def test_a_level_that_skips_is_taken_out_if_both_rounds_were_open(store: Store) -> None:
    campaign = store.open_campaign(asked("nested"), FIRST)
    for number, level in ((2, 3), (1, 1)):
        batch = [nested_report(campaign, 0, number, level), nested_report(campaign, 1, number, 1)]
        assert list(store.commit(batch, [])) == [ACCEPTED, ACCEPTED]
    for number in range(3):
        seal(store, campaign, number)
    assert store.outcomes(campaign.id, 2) == {ACCEPTED: 1, Outcome.BAD_LEVEL: 1}
    assert store.tallies(campaign.id, 2)[0].n == 1
    assert store.received() == sum(store.outcomes().values()) == 4


# --- sealed is final (I10) ----------------------------------------------------------------------
def test_a_report_for_a_sealed_round_is_only_late(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    before = snapshot(store)
    late = [candidate(campaign, 1), candidate(campaign, 1, body=3), candidate(campaign, 2)]
    assert list(store.commit(late, [])) == [LATE] * 3
    after = snapshot(store)
    assert after[campaign.name] == before[campaign.name]
    assert store.outcomes(campaign.id)[LATE] == 3
    assert store.outcomes(campaign.id, 0) == {ACCEPTED: 1}


# --- counts -------------------------------------------------------------------------------------
@pytest.mark.parametrize("unary", [True, False])
@pytest.mark.parametrize("k", [2, 7, 8, 9, 16, 255, 256, 257, 4096])
def test_bodies_of_every_width_are_counted(unary: bool, k: int) -> None:
    form = BodyFormat(unary, k)
    bodies, quick = random_counts(form, 60, seed=k)
    bodies.append(form.encode(k - 1))
    quick[k - 1] += 1
    assert count_bodies(bodies, form).tolist() == recount(bodies, form) == quick.tolist()


# --- forgetting ---------------------------------------------------------------------------------
@pytest.mark.parametrize("attribute", [FUEL, COLOUR])
def test_a_forgotten_device_is_not_counted_again(
    store: Store, campaign: Campaign, attribute: int
) -> None:
    """A4: neither in the round it was withdrawn from nor later, also about another attribute."""
    store.commit([candidate(campaign, 1), candidate(campaign, 1, 1)], [])
    seal(store, campaign, 0)
    assert withdraw(store, campaign, 1) == 1
    before = {n: counts_of(store, campaign, n) for n in (0, 1, 2)}
    again = [candidate(campaign, 1, n, attribute) for n in (0, 1, 2)]
    other = candidate(campaign, 2, 2, attribute)
    outcomes = list(store.commit([*again, other], []))
    assert outcomes == [Outcome.LATE, Outcome.FORGOTTEN, Outcome.FORGOTTEN, ACCEPTED]
    assert {n: counts_of(store, campaign, n) for n in (0, 1)} == {0: before[0], 1: before[1]}
    assert store.tallies(campaign.id, 2)[attribute].n == 1
    assert store.outcomes(campaign.id, 2) == {Outcome.FORGOTTEN: 1, ACCEPTED: 1}


def test_a_device_that_never_reported_can_be_forgotten_in_one_campaign(
    store: Store, campaign: Campaign
) -> None:
    """A4: its reports may be on their way. Other campaigns do not know of it, nor does this one
    when its retention is over."""
    other = store.open_campaign(three_questions(slug="other"), FIRST)
    assert withdraw(store, campaign, 1) == 0
    assert list(store.commit([candidate(campaign, 1)], [])) == [Outcome.FORGOTTEN]
    assert list(store.commit([candidate(other, 1, attribute=TOWN)], [])) == [ACCEPTED]
    assert store.drop_devices(campaign.id)
    assert not store.drop_devices(campaign.id)
    assert list(store.commit([candidate(campaign, 1)], [])) == [ACCEPTED]


def test_requests_are_counted_by_result(store: Store, campaign: Campaign, engine: Engine) -> None:
    """A2: a batch is one transaction; a device is forgotten once."""
    store.commit([candidate(campaign, device) for device in range(4)], [])
    asked = [(campaign.id, device) for device in (1, 2)]
    done = store.withdraw(asked, repeated=5, invalid=2)
    assert [(d.device, len(d.reports), d.repeated) for d in done] == [(1, 1, False), (2, 1, False)]
    again = store.withdraw([(campaign.id, 2), (campaign.id, 3)])
    assert [(d.device, len(d.reports), d.repeated) for d in again] == [(2, 0, True), (3, 1, False)]
    with closing(engine.open()) as other:
        assert other.requests() == {"done": 3, "repeated": 6, "invalid": 2}
    assert counts_of(store, campaign, 0) == {FUEL: [1, 0, 0, 0]}


def test_sealed_sums_keep_their_senders_count_after_a_withdrawal(
    store: Store, campaign: Campaign
) -> None:
    """Pooling divides sealed counts by the reports that made them, also those of who left."""
    for number in range(2):
        store.commit([candidate(campaign, d, number, body=d) for d in range(10)], [])
        seal(store, campaign, number)
    for device in range(5):
        assert withdraw(store, campaign, device) == 0
    released = store.released(campaign.id, FUEL)
    reports, devices = store.participation(campaign.id, FUEL)
    assert released is not None
    assert (released.rounds, released.tally.n, reports, devices) == (2, 20, [2], [10])
    store.commit([candidate(campaign, 9, 2, body=1)], [])
    seal(store, campaign, 2)
    pooled = store.results(campaign.id, FUEL)[0]
    assert (pooled.n, pooled.devices) == (21, 10)
    assert sum(pooled.raw) == pytest.approx(1.0)


# --- campaigns ----------------------------------------------------------------------------------
def test_opening_and_closing_again_keep_the_first_time(store: Store, campaign: Campaign) -> None:
    again = store.open_campaign(campaign.manifest, FIRST + 99)
    assert (again, store.campaigns()) == (campaign, [campaign])
    assert (again.opened, again.closed) == (FIRST, None)
    for closed in (FIRST + 5, FIRST + 9):
        store.close_campaign(campaign, closed)
    assert store.campaign(None).closed == FIRST + 5


def test_a_campaign_is_found_by_its_beginning(store: Store, campaign: Campaign) -> None:
    assert store.campaign(None) == store.campaign("te") == store.campaign(campaign.name) == campaign
    other = store.open_campaign(three_questions(slug="tent"), FIRST)
    assert store.campaign("ten") == other
    for name in (None, "te", "nosuch"):
        with pytest.raises(UnknownCampaign, match="tent-"):
            store.campaign(name)


def test_a_change_from_elsewhere_is_noticed(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    seen = store.changed_elsewhere()
    store.commit([candidate(campaign, 1)], [])
    assert store.changed_elsewhere() == seen
    with closing(engine.open()) as other:
        other.close_campaign(campaign, FIRST + 5)
        other.revoke("stolen-1", FIRST)
    assert store.changed_elsewhere() != seen
    assert store.campaign(None).closed == FIRST + 5
    assert store.revoked() == {"stolen-1"}
    store.reinstate("stolen-1")
    assert store.revoked() == frozenset()


def test_a_running_worker_stops_when_a_newer_version_has_changed_the_database(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    """It writes nothing more, and learns why when it enlists again, if not before."""
    store.enlist("worker")
    store.commit([candidate(campaign, 1)], [])
    before = store.received()
    engine.upgrade()
    attempts: list[Callable[[], object]] = [
        lambda: store.commit([candidate(campaign, 2)], []),
        lambda: store.withdraw([(campaign.id, 1)]),
        lambda: seal(store, campaign, 0),
    ]
    for attempt in attempts:
        with pytest.raises((NewerSchema, StorageFailure)):
            attempt()
    assert (store.received(), store.last_sealed(campaign.id)) == (before, None)
    with pytest.raises(NewerSchema, match="what was not committed was not acknowledged"):
        store.enlist("worker")


# --- as a whole or not at all -------------------------------------------------------------------
class Interrupted(Exception):
    """Raised inside a sealing, after some of its steps."""


def test_a_batch_that_cannot_be_counted_changes_nothing(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    before = snapshot(store)
    stray = Candidate(campaign.id + 7, 0, 9, FUEL, 0, 9, b"\0")
    with pytest.raises(KeyError):
        store.commit([candidate(campaign, 2), stray], [Refusal(campaign.id, 0, Outcome.EARLY)])
    assert snapshot(store) == before
    assert list(store.commit([candidate(campaign, 2)], [])) == [ACCEPTED]


@pytest.mark.parametrize("steps", range(7))
def test_a_sealing_that_is_cut_short_changes_nothing(
    store: Store, campaign: Campaign, engine: Engine, steps: int
) -> None:
    """Whatever was done inside the block, others never see any of it."""
    store.commit([candidate(campaign, d, body=d) for d in range(5)], [])
    with closing(engine.open("elsewhere")) as other:
        twin = other.open_campaign(campaign.manifest, FIRST)
        other.commit([candidate(twin, 1)], [])
        seal(other, twin, 0)
        made = {FUEL: other.results(twin.id, FUEL)[0]}
    before = snapshot(store)

    def seal_partly() -> None:
        with store.sealing(campaign, 0, FIRST) as sealing:
            assert sealing is not None
            acts: tuple[Callable[[], object], ...] = (
                lambda: sealing.write(made, 0),
                lambda: sealing.end_reports(set(), {FUEL}),
                lambda: sealing.set_aside(FUEL),
                lambda: sealing.release(FUEL),
                lambda: sealing.write(made, POOLED),
                sealing.drop_unreleased,
            )
            for act in acts[:steps]:
                act()
            raise Interrupted

    with pytest.raises(Interrupted):
        seal_partly()
    assert snapshot(store) == before
    assert list(store.commit([candidate(campaign, 9)], [])) == [ACCEPTED]
    assert len(seal(store, campaign, 0)) == 4


# --- at the broker ------------------------------------------------------------------------------
def test_a_result_is_unpublished_until_it_is_marked(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    waiting = store.unpublished()
    places = [(r.round, r.attribute) for r in waiting]
    assert places == [(POOLED, FUEL), (0, FUEL), (0, TOWN), (0, COLOUR)]
    assert store.unpublished(2) == waiting[:2]
    for result in waiting[1:]:
        store.mark_published(result)
    assert store.unpublished() == waiting[:1]
    store.publish_again()
    assert store.unpublished() == waiting


def test_a_newer_pooled_result_is_not_marked_with_an_older_one(
    store: Store, campaign: Campaign
) -> None:
    store.commit([candidate(campaign, 1, number) for number in range(2)], [])
    seal(store, campaign, 0)
    (old,) = [r for r in store.unpublished() if r.round == POOLED]
    seal(store, campaign, 1)
    store.mark_published(old)
    assert [r.round for r in store.unpublished()].count(POOLED) == 1


def test_receipts_of_sealed_rounds_can_be_cleared(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1, number) for number in range(3)], [])
    assert store.clearable_receipts(campaign.id) == []
    for number in range(2):
        seal(store, campaign, number)
    assert store.clearable_receipts(campaign.id) == [0, 1]
    store.mark_receipts_cleared(campaign.id, 0)
    assert store.clearable_receipts(campaign.id) == [1]
    assert sorted(store.receipt_tags(campaign.id, 2)) == [(1, 1)]


# --- names and signatures (P3) ------------------------------------------------------------------
def test_the_name_of_another_campaign_is_refused(store: Store) -> None:
    store.open_campaign(A, FIRST)
    before = snapshot(store)
    with pytest.raises(CollectorError, match="Nothing was opened or changed") as refused:
        store.open_campaign(B, FIRST)
    assert A.digest.hex() in str(refused.value)
    assert B.digest.hex() in str(refused.value)
    assert snapshot(store) == before
    assert store.open_campaign(A, FIRST).manifest == A


def test_a_signature_is_kept(store: Store) -> None:
    opened = store.open_campaign(A, FIRST)
    assert store.signature(opened.id) == b""
    assert store.open_campaign(A, FIRST, b"s" * 64) == opened
    assert store.open_campaign(A, FIRST) == opened
    assert store.signature(opened.id) == b"s" * 64
    assert store.signature(opened.id + 1) == b""


# --- reports of every mechanism, through admission, are counted exactly ---------------------------
NOW = FIRST + 60


class Opened:
    """A campaign with everything that counts for it."""

    def __init__(self, store: Store, reporting: str, key: DeviceKey, min_reports: int = 1) -> None:
        self.store = store
        manifest = asked(reporting, min_reports=min_reports, each=8)
        self.campaign: Campaign = store.open_campaign(manifest, FIRST)
        self.known = open_campaigns(self.campaign, key)
        self.key = key

    def device(self, name: str, attribute: int = FUEL_INDEX) -> Device:
        return Device(self.campaign.manifest, name, attribute)

    def count(self, *messages: Message, now: float = NOW) -> Counter[Outcome]:
        done = ingest.count(messages, self.store, self.known, now)
        return Counter(done.outcomes if done.candidates else self.store.outcomes())

    def outcome(self, message: Message) -> Outcome:
        before = Counter(self.store.outcomes())
        ingest.count([message], self.store, self.known, NOW)
        (found,) = (Counter(self.store.outcomes()) - before).elements()
        return found

    def withdraw(self, name: str) -> int:
        return withdraw(self.store, self.campaign, self.key.number(self.campaign.manifest, name))

    def seal(self, number: int) -> list[Result]:
        at = self.campaign.manifest.rounds.deadline(number)
        return sealing.seal(self.store, self.campaign, number, at)


@pytest.fixture(params=MECHANISMS)
def opened(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Opened:
    return Opened(store, request.param, DeviceKey(tmp_path / "device.key"))


def expected(opened: Opened, messages: list[Message]) -> dict[int, list[int]]:
    """The rows of counts that these messages add up to, computed the slow way."""
    rows: dict[int, list[int]] = {}
    for message in messages:
        report = decode_report(message.payload)
        assert isinstance(report, Report)
        device = (message.topic or "").split("/")[-2]
        mechanism = opened.campaign.manifest.mechanisms[report.attribute]
        channel, body = mechanism.supported(report.body, device)
        wide, k = len(mechanism.channels) > 1, mechanism.k
        row = rows.setdefault(
            report.attribute, [0] * ((k + 1) * len(mechanism.channels) if wide else k)
        )
        start = (k + 1) * channel if wide else 0
        if wide:
            row[start] += 1
        for value in mechanism.counted.supported(body):
            row[start + wide + value] += 1
    return rows


def counts(opened: Opened, number: int) -> dict[int, list[int]]:
    tallies = opened.store.tallies(opened.campaign.id, number)
    return {attribute: tally.counts.tolist() for attribute, tally in tallies.items() if tally.n}


def many(opened: Opened, number: int = 0) -> list[Message]:
    return [opened.device(f"d-{i}", i % 3).message(number, i % 4) for i in range(60)]


def test_reports_are_counted_as_what_they_support(opened: Opened) -> None:
    messages = many(opened)
    assert opened.count(*messages) == {Outcome.ACCEPTED: 60}
    assert counts(opened, 0) == expected(opened, messages)


def test_a_withdrawn_report_leaves_no_trace_in_the_counts(opened: Opened) -> None:
    messages = many(opened)
    opened.count(*messages)
    leaving = opened.device("leaving-1", TOWN_INDEX)
    opened.count(leaving.message(0, 7), leaving.message(1, 7), now=NOW + HOUR)
    assert opened.withdraw("leaving-1") == 2
    assert counts(opened, 0) == expected(opened, messages)
    assert counts(opened, 1) == {}
    assert opened.withdraw("leaving-1") == 0


def test_results_of_real_reports_decode_and_keep_their_bytes(
    opened: Opened, engine: Engine, tmp_path: Path
) -> None:
    """I10: the same reports at another collector, in another order, give the same bytes."""
    rounds = [many(opened, number) for number in range(3)]
    made = []
    with closing(engine.open("twin")) as store:
        twin = Opened(store, opened.campaign.manifest.reporting, DeviceKey(tmp_path / "twin.key"))
        for number, messages in enumerate(rounds):
            opened.count(*messages, now=NOW + number * HOUR)
            for message in reversed(messages):
                twin.count(message, now=NOW + number * HOUR)
            results = opened.seal(number)
            assert [r.encode() for r in twin.seal(number)] == [r.encode() for r in results]
            made += results
    for result in made:
        decoded = decode_result(result.encode())
        assert isinstance(decoded, Result), decoded
        assert decoded.encode() == result.encode()
        assert not decoded.withheld
        assert decoded.reporting == opened.campaign.manifest.reporting
        assert (decoded.numbers is not None) <= (decoded.attribute == "power")
    stored = [result.encode() for result in opened.store.results(opened.campaign.id)]
    assert set(stored) <= {result.encode() for result in made}


# --- refused --------------------------------------------------------------------------------------
def test_all_bodies_have_one_length_and_end_in_zeros(opened: Opened) -> None:
    manifest = opened.campaign.manifest
    topic = Topics(manifest.campaign).report("kitchen-7")
    lengths = set()
    for attribute in range(3):
        message = opened.device("kitchen-7", attribute).message(0, 1)
        report = decode_report(message.payload)
        assert isinstance(report, Report)
        lengths.add(len(message.payload))
        answer = manifest.mechanisms[attribute].answer_bytes
        for body, why in [
            (report.body + b"\0", Outcome.BAD_LENGTH),
            (report.body[:-1], Outcome.BAD_LENGTH),
            (report.body[:-1] + b"\1", Outcome.BAD_PADDING),
        ]:
            if why is Outcome.BAD_PADDING and answer == manifest.body_bytes:
                continue
            bad = Report(digest8(manifest), 0, attribute, body)
            assert opened.outcome(Message(topic, bad.encode())) is why
    assert len(lengths) == 1


@pytest.mark.parametrize(
    ("reporting", "start", "expected"),
    [
        ("hashed", b"\2", Outcome.BAD_VALUE),
        ("nested", b"\0", Outcome.BAD_VALUE),
        ("nested", b"\xff", Outcome.BAD_VALUE),
        ("nested", b"\2", Outcome.BAD_LEVEL),
    ],
)
def test_cells_and_levels_that_nobody_can_have_are_refused(
    store: Store, tmp_path: Path, reporting: str, start: bytes, expected: Outcome
) -> None:
    """Also behind a prefix that is known from a good report."""
    opened = Opened(store, reporting, DeviceKey(tmp_path / "device.key"))
    manifest = opened.campaign.manifest
    body = start.ljust(manifest.body_bytes, b"\0")
    bad = Report(digest8(manifest), 0, FUEL_INDEX, body).encode()
    for _ in range(2):
        assert opened.outcome(Message(Topics(manifest.campaign).report("d-1"), bad)) is expected
        opened.count(opened.device("d-2").message(0, 1))

"""Admission: every bad input has exactly one name, and good ones pass, also those recognised."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.data_dir import DeviceKey
from collector.ingest.admit import PREFIXES, OpenCampaigns, ReportPrefixCache, admit
from collector.links import Message
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Candidate, Refusal
from protocol_spec import (
    Groups,
    Manifest,
    Outcome,
    Report,
    Topics,
    digest8,
    receipt_page,
    receipt_tag,
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.collector import (
    COLOUR,
    FIRST,
    FUEL,
    HOUR,
    TOWN,
    Device,
    asked,
    message,
    open_campaigns,
    payload,
    three_questions,
)

MANIFEST = three_questions(count=3)
CAMPAIGN = Campaign(7, MANIFEST, FIRST, None)
NOW = FIRST + HOUR + 1.0  # the second round is open
GOOD = payload(MANIFEST)
MALFORMED = Outcome.MALFORMED
TOPIC = message(MANIFEST).topic or ""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> OpenCampaigns:
    key = DeviceKey(tmp_path_factory.mktemp("key") / "device.key")
    return open_campaigns(CAMPAIGN, key, "stolen-1")


def packed(*fields: Any) -> bytes:
    return bytes(msgpack.packb(list(fields), use_bin_type=True))


def report(**changed: Any) -> bytes:
    """A good report with some fields replaced by anything."""
    fields = {"v": 1, "digest": digest8(MANIFEST), "round": 0, "attribute": FUEL, "body": b"\0\0"}
    return packed(*{**fields, **changed}.values())


HEAD = b"\x95\x01\xc4\x08" + digest8(MANIFEST)


# Malformed messages of every kind are in tests/unit/protocol/test_messages.py.
BAD_PAYLOADS: dict[str, tuple[bytes, Outcome]] = {
    "empty": (b"", MALFORMED),
    "truncated by one": (GOOD[:-1], MALFORMED),
    "trailing byte": (GOOD + b"\0", MALFORMED),
    "arrays in arrays": (b"\x91" * 500 + b"\x00", MALFORMED),
    "4 GB of array": (b"\xdd\xff\xff\xff\xff", MALFORMED),
    "4 GB of bytes": (HEAD + b"\x00\x00\xc6\xff\xff\xff\xff", MALFORMED),
    "bool for a round": (report(round=False), MALFORMED),
    "negative round": (report(round=-1), MALFORMED),
    "longer integer than need be": (HEAD + b"\xcd\x00\x00" + b"\x00\xc4\x01\x00", MALFORMED),
    "version 2": (report(v=2), MALFORMED),
    "oversize": (report(body=bytes(600)), Outcome.OVERSIZE),
    "oversize rubbish": (bytes(1 << 20), Outcome.OVERSIZE),
    "wrong digest and all else": (
        report(digest=bytes(8), round=9, attribute=99),
        Outcome.WRONG_MANIFEST,
    ),
    "next round": (report(round=2), Outcome.EARLY),
    "round after the last": (report(round=3), Outcome.EARLY),
    "round far away": (report(round=65_535), Outcome.EARLY),
    "attribute out of range": (report(attribute=3), Outcome.BAD_ATTRIBUTE),
    "last attribute of all": (report(attribute=127), Outcome.BAD_ATTRIBUTE),
    "empty body": (report(body=b""), Outcome.BAD_LENGTH),
    "long index": (report(body=b"\0\0\0"), Outcome.BAD_LENGTH),
    "short bits": (report(attribute=COLOUR, body=b"\0"), Outcome.BAD_LENGTH),
    "last padding bit": (report(attribute=COLOUR, body=b"\0\x01"), Outcome.BAD_PADDING),
    "first padding bit": (report(attribute=COLOUR, body=b"\0\x10"), Outcome.BAD_PADDING),
    "value k": (report(body=b"\x04\0"), Outcome.BAD_VALUE),
    "value k in two bytes": (report(attribute=TOWN, body=b"\x01\x2c"), Outcome.BAD_VALUE),
}
MISMATCHED: dict[str, str | None] = {
    "not UTF-8": None,
    "empty": "",
    "other namespace": TOPIC.replace("allomfree", "other"),
    "other version": TOPIC.replace("/v1/", "/v2/"),
    "extra level": TOPIC + "/more",
    "a level missing": TOPIC.removesuffix("/report"),
    "leading slash": "/" + TOPIC,
    "not upwards": TOPIC.replace("/up/", "/down/"),
    "a request": TOPIC.replace("/report", "/request"),
    "NUL": TOPIC.replace("kitchen-7", "kitchen\0"),
    "line end": TOPIC + "\n",
    "no device": TOPIC.replace("kitchen-7", ""),
    "33 letters": TOPIC.replace("kitchen-7", "x" * 33),
    "other script": TOPIC.replace("kitchen-7", "kitchen-\u0667"),
    "surrogate": TOPIC.replace("kitchen-7", "\ud800"),
    "no campaign's name": TOPIC.replace(CAMPAIGN.name, "test"),
}


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_a_bad_payload_has_one_name(known: OpenCampaigns, name: str) -> None:
    data, expected = BAD_PAYLOADS[name]
    assert admit(Message(TOPIC, data), known, NOW) == Refusal(CAMPAIGN.id, NO_ROUND, expected)


@pytest.mark.parametrize("name", MISMATCHED)
def test_a_bad_topic_has_one_name(known: OpenCampaigns, name: str) -> None:
    refused = admit(Message(MISMATCHED[name], GOOD), known, NOW)
    assert refused == Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH)


def test_a_campaign_that_is_not_open_is_unknown(known: OpenCampaigns) -> None:
    unknown = TOPIC.replace(CAMPAIGN.name, "test-00000000")
    refused = admit(Message(unknown, GOOD), known, NOW)
    assert refused == Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.UNKNOWN_CAMPAIGN)


def test_a_retained_or_a_revoked_report_is_refused_whatever_it_holds(known: OpenCampaigns) -> None:
    stolen = TOPIC.replace("kitchen-7", "stolen-1")
    for data in (GOOD, b"rubbish"):
        refused = admit(Message(TOPIC, data, retained=True), known, NOW)
        assert refused == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.RETAINED)
        refused = admit(Message(stolen, data), known, NOW)
        assert refused == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.REVOKED)


def test_a_suspended_device_is_refused_before_its_bytes_are_looked_at(
    known: OpenCampaigns,
) -> None:
    """A8: an open campaign is looked for, nothing else."""
    suspended = {"kitchen-7", "stolen-1"}
    for data in (GOOD, b"rubbish", bytes(100_000)):
        refused = admit(Message(TOPIC, data), known, NOW, suspended)
        assert refused == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.SUSPENDED)
    stolen = admit(Message(TOPIC.replace("kitchen-7", "stolen-1"), GOOD), known, NOW, suspended)
    assert stolen == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.REVOKED)
    other = admit(Message(TOPIC.replace("kitchen-7", "kitchen-8"), GOOD), known, NOW, suspended)
    assert isinstance(other, Candidate)


def test_a_closed_campaign_takes_what_may_have_waited_for_it(known: OpenCampaigns) -> None:
    """Rounds that had begun at its closing; later ones are never sealed (F1)."""
    closing = open_campaigns(replace(CAMPAIGN, closed=FIRST + 1), known.key)
    assert isinstance(admit(message(MANIFEST, "d0", number=0), closing, NOW), Candidate)
    refused = admit(message(MANIFEST, "d0", number=1), closing, NOW)
    assert refused == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.UNKNOWN_CAMPAIGN)


def test_a_round_begins_at_its_instant_and_only_sealing_makes_it_late(known: OpenCampaigns) -> None:
    """What a broker kept for a collector that was away was not sent too late."""
    early = Refusal(CAMPAIGN.id, NO_ROUND, Outcome.EARLY)
    assert admit(Message(TOPIC, GOOD), known, FIRST - 0.001) == early
    for now in (float(FIRST), FIRST + 10 * 366 * 86_400.0):
        assert isinstance(admit(Message(TOPIC, GOOD), known, now), Candidate)
    beyond = message(MANIFEST, number=MANIFEST.rounds.count)
    assert admit(beyond, known, FIRST + 1e9) == early, "it never begins"


@pytest.mark.parametrize(
    ("attribute", "body"),
    [
        (FUEL, b"\x00"),
        (FUEL, b"\x03"),
        (TOWN, b"\x00\x00"),
        (TOWN, struct.pack(">H", 299)),
        (COLOUR, b"\x00\x00"),
        (COLOUR, b"\xff\xe0"),
        (COLOUR, b"\x00\x20"),
    ],
)
def test_a_good_report_is_a_candidate(known: OpenCampaigns, attribute: int, body: bytes) -> None:
    sent = message(MANIFEST, number=1, attribute=attribute, body=body)
    expected = Candidate(
        CAMPAIGN.id,
        1,
        known.key.number(MANIFEST, "kitchen-7"),
        attribute,
        receipt_page(MANIFEST, "kitchen-7"),
        int.from_bytes(receipt_tag(MANIFEST, 1, "kitchen-7")),
        body,
    )
    assert admit(sent, known, NOW) == admit(sent, known, NOW) == expected


def test_the_longest_report_there_can_be_is_taken(tmp_path: Path) -> None:
    values = ", ".join(f'"c{i}"' for i in range(4096))
    wide = f'[[attributes]]\nname = "w"\nquestion = "?"\nprotocol = "L-OSUE"\nvalues = [{values}]\n'
    manifest = three_questions(attributes=wide, count=65_536, period=1)
    campaign = Campaign(1, manifest, FIRST, None)
    sent = message(manifest, number=65_535, attribute=0, body=bytes([255] * 512))
    verdict = admit(sent, open_campaigns(campaign, DeviceKey(tmp_path / "key")), FIRST + 65_536.0)
    assert isinstance(verdict, Candidate)


# --- anything at all ----------------------------------------------------------------------------
LEVELS = st.sampled_from(
    ["allomfree", "v1", "up", "down", "report", "request", CAMPAIGN.name, "kitchen-7", "", "+"]
)
TOPICS = st.one_of(
    st.none(),
    st.text(max_size=60),
    st.lists(LEVELS, max_size=8).map("/".join),
    st.text(max_size=40).map(lambda device: TOPIC.replace("kitchen-7", device)),
)
FIELDS: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


def mutated(data: bytes, at: int, byte: int) -> bytes:
    return data[: at % len(data)] + bytes([byte]) + data[at % len(data) + 1 :]


PAYLOADS = st.one_of(
    st.binary(max_size=700),
    st.builds(mutated, st.just(GOOD), st.integers(0, 30), st.integers(0, 255)),
    st.lists(FIELDS, max_size=6).map(lambda fields: packed(*fields)),
    st.builds(
        lambda number, attribute, body: report(round=number, attribute=attribute, body=body),
        st.integers(0, 4),
        st.integers(0, 4),
        st.binary(max_size=3),
    ),
)


@given(topic=TOPICS | st.just(TOPIC), data=PAYLOADS, retained=st.booleans())
def test_anything_gives_a_verdict(
    known: OpenCampaigns, topic: str | None, data: bytes, retained: bool
) -> None:
    verdict = admit(Message(topic, data, retained), known, NOW)
    if isinstance(verdict, Refusal):
        historical = {Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.CONFLICT, Outcome.LATE}
        assert verdict.campaign in (NO_CAMPAIGN, CAMPAIGN.id)
        assert verdict.outcome in set(Outcome) - historical
    else:
        assert verdict.round <= 1
        assert MANIFEST.body_formats[verdict.attribute].fault(verdict.body) is None


def test_every_outcome_without_history_is_covered() -> None:
    """The tests above name every outcome that admission can give."""
    covered: set[Outcome] = {outcome for _, outcome in BAD_PAYLOADS.values()}
    covered |= {Outcome.RETAINED, Outcome.REVOKED, Outcome.SUSPENDED}
    covered |= {Outcome.TOPIC_MISMATCH, Outcome.UNKNOWN_CAMPAIGN}
    names = "accepted duplicate conflict late attribute_changed forgotten bad_level too_many"
    assert covered == set(Outcome) - set(map(Outcome, names.split()))


# --- reports that begin like an admitted one ------------------------------------------------------
PLAIN = three_questions(count=3)
MANIFESTS: dict[str, Manifest] = {"plain": PLAIN, **{way: asked(way) for way in MECHANISMS}}
DEVICES = ("attic", "barn", "cellar", "stolen-1")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> DeviceKey:
    return DeviceKey(tmp_path_factory.mktemp("key") / "device.key")


def opened(manifest: Manifest, key: DeviceKey) -> OpenCampaigns:
    return open_campaigns(Campaign(7, manifest, FIRST, None), key, "stolen-1")


def recognised(
    known: OpenCampaigns, batch: Sequence[Message], now: float = NOW, **options: Any
) -> list[Candidate | None]:
    return known.prefixes.match(batch, now, **options).candidates


def learn_from(known: OpenCampaigns, batch: Sequence[Message], now: float = NOW) -> None:
    """As `count` does: from what was not recognised and is admitted."""
    senders, candidates = known.prefixes.match(batch, now)
    for sent, sender, candidate in zip(batch, senders, candidates):
        verdict = admit(sent, known, now)
        if candidate is None and sender is not None and isinstance(verdict, Candidate):
            known.prefixes.add(sent, sender, verdict)


def prefix_report(
    manifest: Manifest, device: str, number: int, attribute: int, body: bytes
) -> Message:
    payload = Report(digest8(manifest), number, attribute, body).encode()
    return Message(Topics(manifest.campaign).report(device), payload)


# Made once: hypothesis would check each of them again, in each of thousands of messages.
ATTRIBUTE = {name: st.integers(0, len(m.attributes)) for name, m in MANIFESTS.items()}
LENGTH = {
    name: st.sampled_from(sorted({m.body_bytes, *m.answer_lengths, 0, 1}))
    for name, m in MANIFESTS.items()
}
NUMBER, DEVICE = st.integers(0, 3), st.sampled_from(DEVICES)
ONE_IN_5, ONE_IN_10 = st.integers(0, 4), st.integers(0, 9)
BYTE, PART = st.integers(0, 255), st.integers(0, 5)
OTHER_PART = st.sampled_from(["up", "report", "request", "", "X"])


@cache
def any_body(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length) | st.just(bytes(length))


@cache
def place(length: int) -> st.SearchStrategy[int]:
    return st.integers(0, length - 1)


@st.composite
def any_messages(draw: st.DrawFn, name: str) -> Message:
    """Reports, nearly all with something wrong: any body of any length, padding, round, device,
    and a byte changed anywhere in it."""
    attribute, content = draw(ATTRIBUTE[name]), draw(any_body(draw(LENGTH[name])))
    made = prefix_report(MANIFESTS[name], draw(DEVICE), draw(NUMBER), attribute, content)
    payload = bytearray(made.payload)
    if draw(ONE_IN_5) == 0:
        payload[draw(place(len(payload)))] = draw(BYTE)
    topic = made.topic or ""
    if draw(ONE_IN_10) == 0:
        parts = topic.split("/")
        parts[draw(PART)] = draw(OTHER_PART)
        topic = "/".join(parts)
    return Message(topic, bytes(payload), draw(ONE_IN_10) == 0)


BATCH = {name: st.lists(any_messages(name), max_size=30) for name in MANIFESTS}
MOMENT = st.sampled_from([NOW, FIRST + 1.0, FIRST - 1.0])
SUSPENDED = st.sets(DEVICE, max_size=1)


@pytest.mark.parametrize("name", MANIFESTS)
@given(data=st.data())
def test_whatever_is_recognised_is_what_admission_says(
    key: DeviceKey, name: str, data: st.DataObject
) -> None:
    """Whatever was learnt before, from whatever came before."""
    manifest = MANIFESTS[name]
    known = opened(manifest, key)
    first = data.draw(BATCH[name])
    learn_from(known, [*first, *every_kind(manifest)])
    batch = [*data.draw(BATCH[name]), *first]
    now, suspended = data.draw(MOMENT), data.draw(SUSPENDED)
    for sent, found in zip(batch, recognised(known, batch, now, suspended=suspended)):
        assert found is None or found == admit(sent, known, now, suspended)


def test_a_devices_group_is_what_its_operator_recorded(key: DeviceKey) -> None:
    """Whoever has another label, or none, is one of the others; also of prefixes that are known."""
    groups = Groups("region", ("north", "south"))
    manifest = replace(MANIFESTS["memoized"], groups=groups)
    campaign, last = Campaign(7, manifest, FIRST, None), len(manifest.attributes) - 1
    labelled = {7: {"d-0": "south", "d-1": "north", "d-2": "east", "d-4": "others"}}
    known = replace(open_campaigns(campaign, key), labelled=labelled)
    sent = [Device(manifest, f"d-{i}", last).message(0, 0) for i in range(5)]
    cells = [campaign.cells(last)[place] for place in (1, 0, 2, 2, 2)]
    assert [admit(each, known, NOW).attribute for each in sent] == cells  # type: ignore[union-attr]
    learn_from(known, sent)
    assert [found and found.attribute for found in recognised(known, sent)] == cells
    assert {campaign.attribute_of(cell) for cell in cells} == {last}


def every_kind(manifest: Manifest) -> list[Message]:
    """A sound report of each question in each open round."""
    devices = [Device(manifest, f"d-{a}", a) for a in range(len(manifest.attributes))]
    return [device.message(number, 0) for device in devices for number in range(2)]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_report_like_one_before_is_recognised(key: DeviceKey, name: str) -> None:
    """Otherwise it could say nothing at all, and be right."""
    manifest = MANIFESTS[name]
    known, sound = opened(manifest, key), every_kind(manifest)
    assert recognised(known, sound) == [None] * len(sound)
    learn_from(known, sound)
    others = [Message((m.topic or "").replace("/up/", "/up/other-"), m.payload) for m in sound]
    assert recognised(known, others) == [admit(m, known, NOW) for m in others]
    assert recognised(known, sound) == [admit(m, known, NOW) for m in sound]


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_bit_of_a_sound_report(key: DeviceKey, name: str) -> None:
    """Also those that no value stands for, and those of padding."""
    known, sound = opened(MANIFESTS[name], key), every_kind(MANIFESTS[name])
    learn_from(known, sound)
    changed = [
        Message(m.topic, bytes(b ^ (i == at) << bit for i, b in enumerate(m.payload)))
        for m in sound
        for at in range(len(m.payload))
        for bit in range(8)
    ]
    for sent, found in zip(changed, recognised(known, changed)):
        verdict = admit(sent, known, NOW)
        assert found in (verdict, None)
        assert found == verdict or not isinstance(verdict, Candidate)


def test_a_clock_that_was_set_back(key: DeviceKey) -> None:
    known, sound = opened(PLAIN, key), every_kind(PLAIN)
    learn_from(known, sound)
    assert recognised(known, sound, FIRST - 1.0) == [None] * len(sound)


def test_changed_campaigns_and_revoked_devices_are_learnt_again(key: DeviceKey) -> None:
    known, sound = opened(PLAIN, key), every_kind(PLAIN)
    learn_from(known, sound)
    revoked = replace(known, revoked=frozenset({f"d-{a}" for a in range(3)}))
    learn_from(revoked, sound)
    assert recognised(revoked, sound) == [None] * len(sound)


# --- memory -------------------------------------------------------------------------------------
def topic(device: object) -> str:
    return Topics(PLAIN.campaign).report(f"d{device}")


def test_senders_are_remembered_and_their_number_is_bounded(key: DeviceKey) -> None:
    known = ReportPrefixCache({PLAIN.campaign: opened(PLAIN, key).by_name[PLAIN.campaign]},
                        frozenset(), key, "allomfree", senders=100)  # fmt: skip
    for start in range(0, 300, 10):
        names = [Message(topic(i), b"") for i in range(start, start + 10)]
        hostile = [Message(f"{topic(i)}/x" * 50, b"") for i in range(start, start + 10)]
        known.match([*names, *hostile], NOW)
    assert len(known.senders) == 100


def test_beginnings_are_bounded_whoever_reports_for_old_rounds(key: DeviceKey) -> None:
    manifest = three_questions(count=2 * PREFIXES)
    known, late = opened(manifest, key), FIRST + 3 * PREFIXES * HOUR
    for number in range(2 * PREFIXES):
        learn_from(known, [prefix_report(manifest, "attic", number, 0, b"\0\0")], late)
    again = [prefix_report(manifest, "attic", 0, 0, b"\0\0")]
    (sender,) = known.prefixes.match(again, late).senders
    assert sender is not None
    assert 0 < len(sender.known.prefixes) <= PREFIXES

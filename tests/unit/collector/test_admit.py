"""Admission: every bad input has exactly one name, none is an exception, and good ones pass."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.data_dir import DeviceKey
from collector.ingest.admit import OpenCampaigns, admit
from collector.links import Message
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Candidate, Refusal
from protocol_spec import Manifest, Outcome, digest8, receipt_page, receipt_tag
from tests.support.collector import (
    COLOUR,
    FIRST,
    FUEL,
    HOUR,
    TOWN,
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


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\x00"


HEAD = b"\x95\x01\xc4\x08" + digest8(MANIFEST)
BAD_PAYLOADS: dict[str, tuple[bytes, Outcome]] = {
    "empty": (b"", MALFORMED),
    "truncated by one": (GOOD[:-1], MALFORMED),
    "only a header": (GOOD[:1], MALFORMED),
    "trailing byte": (GOOD + b"\0", MALFORMED),
    "two reports": (GOOD + GOOD, MALFORMED),
    "not an array": (packed()[:0] + b"\xc4\x01\x00", MALFORMED),
    "a map": (b"\x81\x01\x02", MALFORMED),
    "too few fields": (packed(1, digest8(MANIFEST), 0, FUEL), MALFORMED),
    "too many fields": (packed(1, digest8(MANIFEST), 0, FUEL, b"\0", 1), MALFORMED),
    "arrays in arrays": (nested(500), MALFORMED),
    "arrays in a report": (report(body=[[[]]]), MALFORMED),
    "4 GB of array": (b"\xdd\xff\xff\xff\xff", MALFORMED),
    "4 GB of map": (b"\xdf\xff\xff\xff\xff", MALFORMED),
    "4 GB of bytes": (HEAD + b"\x00\x00\xc6\xff\xff\xff\xff", MALFORMED),
    "4 GB of text": (HEAD + b"\x00\x00\xdb\xff\xff\xff\xff", MALFORMED),
    "4 GB of extension": (HEAD + b"\x00\x00\xc9\xff\xff\xff\xff\x01", MALFORMED),
    "extension for a body": (HEAD + b"\x00\x00\xd4\x01\x00", MALFORMED),
    "a timestamp for a round": (HEAD + b"\xd6\xff\0\0\0\0" + b"\x00\xc4\x01\x00", MALFORMED),
    "float for a round": (report(round=0.0), MALFORMED),
    "NaN for a round": (report(round=float("nan")), MALFORMED),
    "infinity for an attribute": (report(attribute=float("inf")), MALFORMED),
    "nil for a round": (report(round=None), MALFORMED),
    "bool for a version": (report(v=True), MALFORMED),
    "bool for a round": (report(round=False), MALFORMED),
    "bool for an attribute": (report(attribute=True), MALFORMED),
    "text for a body": (report(body="\0"), MALFORMED),
    "a number for a body": (report(body=0), MALFORMED),
    "text for a digest": (report(digest="12345678"), MALFORMED),
    "short digest": (report(digest=b"1234567"), MALFORMED),
    "2^63 for a round": (report(round=2**63), MALFORMED),
    "2^64 - 1 for an attribute": (report(attribute=2**64 - 1), MALFORMED),
    "-2^63 for a round": (report(round=-(2**63)), MALFORMED),
    "negative round": (report(round=-1), MALFORMED),
    "negative attribute": (report(attribute=-1), MALFORMED),
    "longer integer than need be": (HEAD + b"\xcd\x00\x00" + b"\x00\xc4\x01\x00", MALFORMED),
    "version 0": (report(v=0), MALFORMED),
    "version 2": (report(v=2), MALFORMED),
    "oversize": (report(body=bytes(600)), Outcome.OVERSIZE),
    "oversize rubbish": (bytes(1 << 20), Outcome.OVERSIZE),
    "wrong digest": (report(digest=bytes(8)), Outcome.WRONG_MANIFEST),
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
    "short index": (report(attribute=TOWN, body=b"\0"), Outcome.BAD_LENGTH),
    "short bits": (report(attribute=COLOUR, body=b"\0"), Outcome.BAD_LENGTH),
    "long bits": (report(attribute=COLOUR, body=bytes(3)), Outcome.BAD_LENGTH),
    "last padding bit": (report(attribute=COLOUR, body=b"\0\x01"), Outcome.BAD_PADDING),
    "first padding bit": (report(attribute=COLOUR, body=b"\0\x10"), Outcome.BAD_PADDING),
    "value k": (report(body=b"\x04\0"), Outcome.BAD_VALUE),
    "value -1 in one byte": (report(body=b"\xff\0"), Outcome.BAD_VALUE),
    "value k in two bytes": (
        report(attribute=TOWN, body=struct.pack(">H", 300)),
        Outcome.BAD_VALUE,
    ),
}

BAD_TOPICS: dict[str, tuple[str | None, Outcome]] = {
    "not UTF-8": (None, Outcome.TOPIC_MISMATCH),
    "empty": ("", Outcome.TOPIC_MISMATCH),
    "other namespace": (TOPIC.replace("allomfree", "other"), Outcome.TOPIC_MISMATCH),
    "other version": (TOPIC.replace("/v1/", "/v2/"), Outcome.TOPIC_MISMATCH),
    "extra level": (TOPIC + "/more", Outcome.TOPIC_MISMATCH),
    "empty last level": (TOPIC + "/", Outcome.TOPIC_MISMATCH),
    "a level missing": (TOPIC.removesuffix("/report"), Outcome.TOPIC_MISMATCH),
    "leading slash": ("/" + TOPIC, Outcome.TOPIC_MISMATCH),
    "not upwards": (TOPIC.replace("/up/", "/down/"), Outcome.TOPIC_MISMATCH),
    "a request": (TOPIC.replace("/report", "/request"), Outcome.TOPIC_MISMATCH),
    "NUL": (TOPIC.replace("kitchen-7", "kitchen\0"), Outcome.TOPIC_MISMATCH),
    "line end": (TOPIC + "\n", Outcome.TOPIC_MISMATCH),
    "no device": (TOPIC.replace("kitchen-7", ""), Outcome.TOPIC_MISMATCH),
    "capitals": (TOPIC.replace("kitchen-7", "Kitchen"), Outcome.TOPIC_MISMATCH),
    "33 letters": (TOPIC.replace("kitchen-7", "x" * 33), Outcome.TOPIC_MISMATCH),
    "wildcard": (TOPIC.replace("kitchen-7", "+"), Outcome.TOPIC_MISMATCH),
    "other script": (TOPIC.replace("kitchen-7", "kitchen-\u0667"), Outcome.TOPIC_MISMATCH),
    "surrogate": (TOPIC.replace("kitchen-7", "\ud800"), Outcome.TOPIC_MISMATCH),
    "no campaign's name": (TOPIC.replace(CAMPAIGN.name, "test"), Outcome.TOPIC_MISMATCH),
    "unknown campaign": (
        TOPIC.replace(CAMPAIGN.name, "test-00000000"),
        Outcome.UNKNOWN_CAMPAIGN,
    ),
}


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_a_bad_payload_has_one_name(known: OpenCampaigns, name: str) -> None:
    data, expected = BAD_PAYLOADS[name]
    assert admit(Message(TOPIC, data), known, NOW) == Refusal(CAMPAIGN.id, NO_ROUND, expected)


@pytest.mark.parametrize("name", BAD_TOPICS)
def test_a_bad_topic_has_one_name(known: OpenCampaigns, name: str) -> None:
    topic, expected = BAD_TOPICS[name]
    assert admit(Message(topic, GOOD), known, NOW) == Refusal(NO_CAMPAIGN, NO_ROUND, expected)


def test_a_retained_report_may_be_old(known: OpenCampaigns) -> None:
    refused = admit(Message(TOPIC, GOOD, retained=True), known, NOW)
    assert refused == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.RETAINED)


def test_a_revoked_device_is_refused_whatever_it_says(known: OpenCampaigns) -> None:
    stolen = TOPIC.replace("kitchen-7", "stolen-1")
    for data in (GOOD, b"rubbish"):
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


@pytest.mark.parametrize(("now", "taken"), [(FIRST - 0.001, False), (FIRST + 0.0, True)])
def test_the_first_round_begins_at_its_instant(
    known: OpenCampaigns, now: float, taken: bool
) -> None:
    verdict = admit(Message(TOPIC, GOOD), known, now)
    assert isinstance(verdict, Candidate) == taken
    assert taken or verdict == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.EARLY)


def test_only_sealing_makes_a_report_late(known: OpenCampaigns) -> None:
    """What a broker kept for a collector that was away was not sent too late."""
    years_later = FIRST + 10 * 366 * 86_400.0
    assert isinstance(admit(Message(TOPIC, GOOD), known, years_later), Candidate)


def test_a_round_after_the_last_never_begins(known: OpenCampaigns) -> None:
    beyond = message(MANIFEST, number=MANIFEST.rounds.count)
    for now in (NOW, FIRST + 1e9):
        verdict = admit(beyond, known, now)
        assert verdict == Refusal(CAMPAIGN.id, NO_ROUND, Outcome.EARLY)


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


@pytest.mark.parametrize("device", ["a", "-", "0", "x" * 32, "a-b-c-0-9"])
def test_every_pseudonym_may_report(known: OpenCampaigns, device: str) -> None:
    verdict = admit(message(MANIFEST, device), known, NOW)
    assert isinstance(verdict, Candidate)
    assert 0 <= verdict.device < 2**63


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


def is_sound(verdict: Candidate | Refusal, manifest: Manifest) -> bool:
    if isinstance(verdict, Refusal):
        return verdict.campaign in (NO_CAMPAIGN, CAMPAIGN.id) and verdict.outcome in Outcome
    form = manifest.body_formats[verdict.attribute]
    return verdict.round <= 1 and form.fault(verdict.body) is None


@given(topic=TOPICS, data=PAYLOADS, retained=st.booleans())
def test_anything_gives_a_verdict(
    known: OpenCampaigns, topic: str | None, data: bytes, retained: bool
) -> None:
    assert is_sound(admit(Message(topic, data, retained), known, NOW), MANIFEST)


@given(data=PAYLOADS)
def test_any_payload_on_a_good_topic_gives_a_verdict(known: OpenCampaigns, data: bytes) -> None:
    verdict = admit(Message(TOPIC, data), known, NOW)
    assert is_sound(verdict, MANIFEST)
    historical = {Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.CONFLICT, Outcome.LATE}
    assert isinstance(verdict, Candidate) or verdict.outcome not in historical


def test_every_outcome_without_history_is_covered() -> None:
    """The tables above name every outcome that admission can give."""
    told: set[Outcome] = {o for _, o in (*BAD_PAYLOADS.values(), *BAD_TOPICS.values())}
    told |= {Outcome.RETAINED, Outcome.REVOKED, Outcome.SUSPENDED}
    names = {"accepted", "duplicate", "conflict", "late", "attribute_changed", "forgotten"}
    assert told == set(Outcome) - set(map(Outcome, names))

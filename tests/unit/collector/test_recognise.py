"""Recognition says what admission would, about anything; and its memory is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.data_dir import DeviceKey
from collector.ingest.admit import PREFIXES, SKIPPED, OpenCampaigns, ReportPrefixCache, admit
from collector.links import Message
from collector.records import Campaign, Candidate
from protocol_spec import Manifest, Report, Topics, digest8
from protocol_spec.mechanisms import MECHANISMS
from tests.support.collector import (
    FIRST,
    HOUR,
    Device,
    asked,
    open_campaigns,
    three_questions,
)

NOW = FIRST + HOUR + 1.0  # the second round is open
PLAIN = three_questions(count=3)
MANIFESTS: dict[str, Manifest] = {"plain": PLAIN, **{way: asked(way) for way in MECHANISMS}}
DEVICES = ("attic", "barn", "cellar", "stolen-1")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> DeviceKey:
    return DeviceKey(tmp_path_factory.mktemp("key") / "device.key")


def opened(manifest: Manifest, key: DeviceKey) -> OpenCampaigns:
    return open_campaigns(Campaign(7, manifest, FIRST, None), key, "stolen-1")


def recognised(
    known: OpenCampaigns, messages: Sequence[Message], now: float = NOW, **options: Any
) -> list[Candidate | None]:
    return known.prefixes.match(messages, now, **options).candidates


def learn_from(known: OpenCampaigns, messages: Sequence[Message], now: float = NOW) -> None:
    """As `count` does: from what was not recognised and is admitted."""
    senders, candidates = known.prefixes.match(messages, now)
    for message, sender, candidate in zip(messages, senders, candidates):
        verdict = admit(message, known, now)
        if candidate is None and sender is not None and isinstance(verdict, Candidate):
            known.prefixes.add(message, sender, verdict)


def report(manifest: Manifest, device: str, number: int, attribute: int, body: bytes) -> Message:
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
def body(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length) | st.just(bytes(length))


@cache
def place(length: int) -> st.SearchStrategy[int]:
    return st.integers(0, length - 1)


@st.composite
def messages(draw: st.DrawFn, name: str) -> Message:
    """Reports, nearly all with something wrong: any body of any length, padding, round, device,
    and a byte changed anywhere in it."""
    attribute, content = draw(ATTRIBUTE[name]), draw(body(draw(LENGTH[name])))
    made = report(MANIFESTS[name], draw(DEVICE), draw(NUMBER), attribute, content)
    payload = bytearray(made.payload)
    if draw(ONE_IN_5) == 0:
        payload[draw(place(len(payload)))] = draw(BYTE)
    topic = made.topic or ""
    if draw(ONE_IN_10) == 0:
        parts = topic.split("/")
        parts[draw(PART)] = draw(OTHER_PART)
        topic = "/".join(parts)
    return Message(topic, bytes(payload), draw(ONE_IN_10) == 0)


BATCH = {name: st.lists(messages(name), max_size=30) for name in MANIFESTS}
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
    for message, found in zip(batch, recognised(known, batch, now, suspended=suspended)):
        assert found is None or found == admit(message, known, now, suspended)


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
    for message, found in zip(changed, recognised(known, changed)):
        verdict = admit(message, known, NOW)
        assert found in (verdict, None)
        assert found == verdict or not isinstance(verdict, Candidate)


def test_a_clock_that_was_set_back(key: DeviceKey) -> None:
    known, sound = opened(PLAIN, key), every_kind(PLAIN)
    learn_from(known, sound)
    assert recognised(known, sound, FIRST - 1.0) == [None] * len(sound)


def test_changed_campaigns_and_revoked_devices_are_learnt_anew(key: DeviceKey) -> None:
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
    for start in range(0, 100 * SKIPPED * 3, 10):
        names = [Message(topic(i), b"") for i in range(start, start + 10)]
        hostile = [Message(f"{topic(i)}/x" * 50, b"") for i in range(start, start + 10)]
        known.match([*names, *hostile], NOW)
        assert len(known.senders) <= 110
    for _ in range(3 * SKIPPED):  # a fleet that fits in comes again and again
        known.match([Message(topic(i), b"") for i in range(40)], NOW)
    assert len(known.senders) >= 40


def test_beginnings_are_bounded_whoever_reports_for_old_rounds(key: DeviceKey) -> None:
    manifest = three_questions(count=2 * PREFIXES)
    known, late = opened(manifest, key), FIRST + 3 * PREFIXES * HOUR
    for number in range(2 * PREFIXES):
        learn_from(known, [report(manifest, "attic", number, 0, b"\0\0")], late)
    again = [report(manifest, "attic", 0, 0, b"\0\0")]
    (sender,) = known.prefixes.match(again, late).senders
    assert sender is not None
    assert 0 < len(sender.known.prefixes) <= PREFIXES

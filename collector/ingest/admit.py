"""Admission: whether a message is a report that may be counted.

`admit` is pure. Whatever needs history (a repeated report, a changed attribute, a sealed round) is
decided by the store; everything else here. A bad message is data with a name, never an exception.

`ReportPrefixCache` admits whole batches of reports like ones admitted before, without decoding
them; whatever it does not find is left to `admit`, so that it can only say what `admit` would (a
test holds both equal).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from collector.data_dir import DeviceKey
from collector.links import Message
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Candidate, Refusal
from protocol_spec import (
    Mechanism,
    NameHash,
    Outcome,
    Rejected,
    decode_report,
    hashed_for_page,
    hashed_for_tag,
    receipt_page,
    receipt_tag,
    report_fault,
)
from protocol_spec.topics import parse_from_device, report_root, split_report


@dataclass(frozen=True, slots=True)
class OpenCampaigns:
    """What admission knows: campaigns by name, revoked devices, the key, the namespace.

    A closed campaign is among them until its rounds are sealed. `labelled` has, by campaign, the
    devices with the label that it groups results by, and its value.
    """

    by_name: Mapping[str, Campaign]
    revoked: frozenset[str]
    key: DeviceKey
    namespace: str
    labelled: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    prefixes: ReportPrefixCache = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        made = ReportPrefixCache(
            self.by_name, self.revoked, self.key, self.namespace, labelled=self.labelled
        )
        object.__setattr__(self, "prefixes", made)


def admit(
    message: Message, campaigns: OpenCampaigns, now: float, suspended: Set[str] = frozenset()
) -> Candidate | Refusal:
    """A report ready to be counted, or the one reason why not. Messages of suspended devices are
    not even decoded."""
    origin = parse_from_device(message.topic, campaigns.namespace) if message.topic else None
    if origin is None or origin.kind != "report":
        return Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH)
    campaign = campaigns.by_name.get(origin.campaign)
    if campaign is None:
        return Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.UNKNOWN_CAMPAIGN)
    if message.retained:
        return Refusal(campaign.id, NO_ROUND, Outcome.RETAINED)
    if origin.device in campaigns.revoked:
        return Refusal(campaign.id, NO_ROUND, Outcome.REVOKED)
    if origin.device in suspended:
        return Refusal(campaign.id, NO_ROUND, Outcome.SUSPENDED)
    group = group_of(campaign, campaigns.labelled, origin.device)
    return _check_report(message.payload, origin.device, group, campaign, campaigns.key, now)


def group_of(campaign: Campaign, labelled: Mapping[int, Mapping[str, str]], device: str) -> int:
    """The place of a device's group, by the operator's record alone; 0 where there are none."""
    groups = campaign.manifest.groups
    return 0 if groups is None else groups.number(labelled.get(campaign.id, {}).get(device))


def _check_report(
    payload: bytes,
    device: str,
    group: int,
    campaign: Campaign,
    key: DeviceKey,
    now: float,
) -> Candidate | Refusal:
    """A round must have begun. Only its sealing decides whether it is too late: what a broker kept
    while the collector was away was not sent too late."""
    manifest, report = campaign.manifest, decode_report(payload)
    if isinstance(report, Rejected):
        return Refusal(campaign.id, NO_ROUND, report.outcome)
    fault = report_fault(report, manifest)
    if fault is not None:
        return Refusal(campaign.id, NO_ROUND, fault.outcome)
    opens = manifest.rounds.opens(report.round)
    if now < opens:
        return Refusal(campaign.id, NO_ROUND, Outcome.EARLY)
    if campaign.closed is not None and opens > campaign.closed:
        return Refusal(campaign.id, NO_ROUND, Outcome.UNKNOWN_CAMPAIGN)
    return Candidate(
        campaign.id,
        report.round,
        key.number(manifest, device),
        campaign.cells(report.attribute)[group],
        receipt_page(manifest, device),
        int.from_bytes(receipt_tag(manifest, report.round, device)),
        counted_body(report.body, manifest.mechanisms[report.attribute], device),
    )


def counted_body(body: bytes, mechanism: Mechanism, device: str) -> bytes:
    """What the store counts, and subtracts if the device withdraws, when its name is gone: the
    supported values, behind the number of their channel where there are several."""
    if mechanism.counted_as_sent:  # the most frequent, and the least to do
        return body[: mechanism.answer_bytes]
    channel, supported = mechanism.supported(body, device)
    return bytes((channel,)) + supported if len(mechanism.channels) > 1 else supported


# --- reports like those admitted before --------------------------------------------------------

SENDERS: Final = 1 << 15  # about 400 bytes each
PREFIXES: Final = 1 << 10

_new: Final = tuple.__new__  # makes a named tuple in a third of the time


@dataclass(frozen=True, slots=True, eq=False)
class _Prefix:
    """What all reports that begin with the same bytes have in common."""

    campaign: Campaign
    round: int
    cells: Sequence[int]  # of the attribute, by group
    opens: float
    tag: NameHash
    counted: Callable[[bytes, str], bytes | None]  # of a payload; None where `admit` must decide


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What is known of a campaign: how its devices are numbered, and how its reports begin."""

    campaign: Campaign
    number: NameHash
    page: NameHash
    cuts: dict[int, int] = field(default_factory=dict)  # length of a report: of its prefix
    prefixes: dict[bytes, _Prefix] = field(default_factory=dict)


class Sender(NamedTuple):
    """A device that may report, as its topic names it."""

    name: str
    ascii: bytes
    number: int
    page: int
    group: int
    known: _Known


class Matched(NamedTuple):
    """Of each message of a batch: who may have sent it, and the report if its prefix is known."""

    senders: list[Sender | None]
    candidates: list[Candidate | None]


class ReportPrefixCache:
    """Prefixes and senders of reports that were admitted for one `OpenCampaigns`.

    All bytes of a report before its body are the same for every device that answers the same
    question in the same round: a dictionary from these to what the decoder made of them replaces
    decoding. The sender on a topic, its number and its page are kept, and hashes are read all
    together. Memory is bounded, whoever sends what: only senders that may report, at most `SENDERS`
    of them, and `PREFIXES` prefixes for each campaign.
    """

    def __init__(
        self,
        campaigns: Mapping[str, Campaign],
        revoked: Set[str],
        key: DeviceKey,
        namespace: str,
        senders: int = SENDERS,
        labelled: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self._known = {
            report_root(name, namespace): _Known(
                c, key.hashed(c.manifest), hashed_for_page(c.manifest)
            )
            for name, c in campaigns.items()
        }
        self._revoked = revoked
        self._labelled = labelled
        self.senders: dict[str | None, Sender] = {}
        self._most_senders = senders

    def match(
        self, messages: Sequence[Message], now: float, suspended: Set[str] = frozenset()
    ) -> Matched:
        """Reports with a known prefix, of devices that are not suspended."""
        senders = self._find([message.topic for message in messages])
        candidates: list[Candidate | None] = [None] * len(messages)
        groups: dict[_Prefix, list[int]] = defaultdict(list)
        for i, (sender, (_, payload, retained, _)) in enumerate(zip(senders, messages)):
            if sender is None or retained or (suspended and sender.name in suspended):
                continue
            known = sender.known
            prefix = known.prefixes.get(payload[: known.cuts.get(len(payload), 0)])
            if prefix is not None:
                groups[prefix].append(i)
        for prefix, places in groups.items():
            if now >= prefix.opens:
                _fill(candidates, prefix, places, senders, messages)
        return Matched(senders, candidates)

    def add(self, message: Message, sender: Sender, admitted: Candidate) -> None:
        """A report was admitted: others with its prefix will be matched."""
        known, payload = sender.known, message.payload
        manifest = known.campaign.manifest
        number = admitted.round
        attribute = known.campaign.attribute_of(admitted.attribute)
        cut = len(payload) - manifest.body_bytes
        if payload[:cut] in known.prefixes:
            return
        if len(known.prefixes) >= PREFIXES:
            known.prefixes.clear()
            known.cuts.clear()
        known.cuts[len(payload)] = cut
        known.prefixes[payload[:cut]] = _Prefix(
            known.campaign,
            number,
            known.campaign.cells(attribute),
            manifest.rounds.opens(number),
            hashed_for_tag(manifest, number),
            _reader(manifest.mechanisms[attribute], number, cut, len(payload) - cut),
        )

    def _find(self, topics: Sequence[str | None]) -> list[Sender | None]:
        """Who may report on each topic."""
        found = list(map(self.senders.get, topics))
        missing = {topic for topic, sender in zip(topics, found) if sender is None}
        if missing:
            new = self._read(missing)
            if len(self.senders) < self._most_senders:  # the first ones stay: most report again
                self.senders.update(new)
            found = [sender or new.get(topic) for sender, topic in zip(found, topics)]
        return found

    def _read(self, topics: Iterable[str | None]) -> dict[str | None, Sender]:
        """Devices that may report, by their topics; other topics are left out."""
        devices: dict[str, list[tuple[str, str]]] = defaultdict(list)
        all_known, revoked = self._known, self._revoked
        for topic in topics:
            root, name = split_report(topic or "")
            if name and root in all_known and name not in revoked:
                devices[root].append((topic or "", name))
        made: dict[str | None, Sender] = {}
        for root, pairs in devices.items():
            known = all_known[root]
            of, names = zip(*pairs)
            in_ascii = [name.encode("ascii") for name in names]
            numbers = np.frombuffer(b"".join(map(known.number, in_ascii)), ">u8") >> 1
            pages = _first_words(map(known.page, in_ascii)) % known.campaign.manifest.receipt_pages
            of_all = known.campaign.manifest.groups is None
            groups = (
                repeat(0)
                if of_all
                else (group_of(known.campaign, self._labelled, n) for n in names)
            )
            rows = zip(names, in_ascii, numbers.tolist(), pages.tolist(), groups, repeat(known))
            made.update(zip(of, map(_new, repeat(Sender), rows)))
        return made


def _fill(
    candidates: list[Candidate | None],
    prefix: _Prefix,
    places: Sequence[int],
    senders: Sequence[Sender | None],
    messages: Sequence[Message],
) -> None:
    """Put reports with the same prefix in their places, if their bodies are without fault."""
    good, rows, names = [], [], []
    for i in places:
        sender = senders[i]
        body = prefix.counted(messages[i].payload, sender.name) if sender is not None else None
        if sender is not None and body is not None:
            good.append(i)
            names.append(sender.ascii)
            rows.append((sender.number, prefix.cells[sender.group], sender.page, body))
    campaign, number = prefix.campaign.id, prefix.round
    tags = _first_words(map(prefix.tag, names)).tolist()
    for i, (device, cell, page, body), tag in zip(good, rows, tags):
        row = (campaign, number, device, cell, page, tag, body)
        candidates[i] = _new(Candidate, row)


def _first_words(hashes: Iterable[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The first four bytes of each SHA-256."""
    return np.frombuffer(b"".join(hashes), ">u4")[::8]


def _reader(
    mechanism: Mechanism, number: int, cut: int, length: int
) -> Callable[[bytes, str], bytes | None]:
    """What is counted of a report whose body begins at `cut`; None if its body has a fault."""
    end = cut + mechanism.answer_bytes
    zeros = bytes(cut + length - end)
    mask, size = mechanism.counted.padding_mask, mechanism.counted.size

    def bits(payload: bytes, _device: str) -> bytes | None:
        answer = payload[cut:end]
        faulty = answer[-1] & mask or payload[end:] != zeros
        faulty = faulty or (size and int.from_bytes(answer).bit_count() != size)
        return None if faulty else answer

    def anything(payload: bytes, device: str) -> bytes | None:
        answer = payload[cut:end]
        fault = mechanism.fault(answer) or mechanism.round_fault(answer, number)
        faulty = fault is not None or payload[end:] != zeros
        return None if faulty else counted_body(payload[cut:], mechanism, device)

    return bits if mechanism.counted_as_sent and mechanism.counted.unary else anything

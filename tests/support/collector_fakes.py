"""What the collector's tests feed it: campaigns, reports, and what to expect of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from collector.device_key import DeviceKey
from collector.ingest import OpenCampaigns
from collector.ingest.receipts import ReceiptPages
from collector.links import Message
from collector.records import Campaign, Candidate, Counts
from collector.rounds import sealing
from collector.store import Store
from protocol_spec import BodyFormat, Manifest, Report, Topics, digest8, make_report
from tests.support.campaigns import manifest_text, read_manifest

FIRST: Final = 1_800_000_000
HOUR: Final = 3600

FUEL, TOWN, COLOUR = 0, 1, 2
ATTRIBUTES: Final = f"""
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "town"
question = "Where do you live?"
protocol = "L-GRR"
values = [{", ".join(f'"t{i}"' for i in range(300))}]
[[attributes]]
name = "colour"
question = "Which colour?"
protocol = "L-OSUE"
values = [{", ".join(f'"c{i}"' for i in range(11))}]
"""


def three_questions(*, min_reports: int = 1, **options: Any) -> Manifest:
    """Hourly rounds from FIRST; L-GRR bodies of one and of two bytes, and L-OSUE with padding."""
    options = {"first": FIRST, "grace": HOUR, "attributes": ATTRIBUTES, **options}
    text = manifest_text(**options)
    return read_manifest(text.replace("min_reports = 1", f"min_reports = {min_reports}"))


def answer(campaign: Campaign, attribute: int, number: int) -> bytes:
    """A sound body: the number-th of all there are, wrapping around."""
    form = campaign.manifest.body_formats[attribute]
    return form.from_number(number % (1 << form.k if form.unary else form.k))


def candidate(
    campaign: Campaign,
    device: int,
    number: int = 0,
    attribute: int = FUEL,
    body: bytes | int = 0,
) -> Candidate:
    """A report as admission hands it to the store."""
    if isinstance(body, int):
        body = answer(campaign, attribute, body)
    return Candidate(campaign.id, number, device, attribute, device % 16, device, body)


def recount(bodies: Iterable[bytes], form: BodyFormat) -> list[int]:
    """The slow and obvious count."""
    counts = [0] * form.k
    for body in bodies:
        for value in form.supported(body):
            counts[value] += 1
    return counts


def counts_of(store: Store, campaign: Campaign, number: int) -> dict[int, list[int]]:
    """Counts of a round by attribute, attributes without reports left out."""
    tallies = store.tallies(campaign.id, number)
    return {attribute: t.counts.tolist() for attribute, t in tallies.items() if t.n}


def payload(
    manifest: Manifest, number: int = 0, attribute: int = FUEL, body: bytes = b"\0"
) -> bytes:
    """A report's wire bytes; what is no whole answer is sent as it is."""
    if attribute < len(manifest.ways) and len(body) == manifest.ways[attribute].answer_bytes:
        return make_report(manifest, number, attribute, body).encode()
    return Report(digest8(manifest), number, attribute, body).encode()


def message(manifest: Manifest, device: str = "kitchen-7", **fields: Any) -> Message:
    """A good message, unless the fields say otherwise."""
    return Message(Topics(manifest.campaign).report(device), payload(manifest, **fields))


def open_campaigns(campaign: Campaign, key: DeviceKey, *revoked: str) -> OpenCampaigns:
    return OpenCampaigns({campaign.name: campaign}, frozenset(revoked), key, "allomfree")


def seal(store: Store, campaign: Campaign, number: int) -> list[bytes]:
    """Seal at the round's deadline; the messages that were made."""
    at = campaign.manifest.rounds.deadline(number)
    return [result.encode() for result in sealing.seal(store, campaign, number, at)]


def everywhere(directory: Path) -> bytes:
    """All bytes of the database, its log and its index."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("collector.db*")))


def tags_of(pages: ReceiptPages, campaign: Campaign) -> dict[str, bytes]:
    """Every page that would be published now, by topic."""
    taken = pages.take({campaign.id: campaign}, 1000)
    return {topic: message for _, topic, message in taken}


def random_counts(form: BodyFormat, n: int, seed: int) -> tuple[list[bytes], Counts]:
    """n sound bodies, and how many support each value."""
    draw = np.random.default_rng(seed)
    if form.unary:
        bits = draw.integers(0, 2, (n, form.k), dtype=np.uint8)
        table = np.packbits(bits, axis=1)
        return [row.tobytes() for row in table], bits.sum(axis=0, dtype=np.int64)
    values = draw.integers(0, form.k, n)
    return [form.from_number(int(v)) for v in values], np.bincount(values, minlength=form.k)

"""Simulated reports as the messages that real devices would send, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

from protocol_spec import DEFAULT_NAMESPACE, Manifest, Topics, make_report
from simulation.model.fleet import Fleet, Reports

Sent = tuple[str, bytes]  # topic and payload


def messages(
    manifest: Manifest, reports: Reports, *, late: bool, namespace: str = DEFAULT_NAMESPACE
) -> Iterator[Sent]:
    """The messages of those reports that are on time, or of the others; some of them twice."""
    topics = Topics(manifest.campaign, namespace)
    head, zeros = _around(manifest, reports)
    before, after = topics.report("x").rsplit("x", 1)
    marks = zip(reports.names(), reports.bodies, reports.late.tolist(), reports.twice.tolist())
    for name, body, is_late, twice in marks:
        if is_late is late:
            message = (before + name + after, head + body.tobytes() + zeros)
            yield message
            if twice:
                yield message


def of_round(
    fleet: Fleet, number: int, *, late: bool, namespace: str = DEFAULT_NAMESPACE
) -> Iterator[Sent]:
    """All messages of one round; each batch is made anew and led up to the round."""
    for batch in fleet.batches():
        for _ in range(number):
            batch.reports(only_state=True)
        yield from messages(fleet.manifest, batch.reports(), late=late, namespace=namespace)


def _around(manifest: Manifest, reports: Reports) -> tuple[bytes, bytes]:
    """What stands before and behind the answer in every report of an attribute and round."""
    length = manifest.body_bytes
    blank = make_report(manifest, reports.round, reports.attribute, b"").encode()
    answer = manifest.ways[reports.attribute].answer_bytes
    return blank[:-length], bytes(length - answer)

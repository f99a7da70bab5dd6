"""Vectors of published thresholds: what a collector publishes, what a device may draw with.

Made from the reference alone. Whether a case may be used is said here, by how it was made: each is
far from the limit, or exactly at one of the two that the specification names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from tests.support.protocol import reference, way_vectors
from tests.support.protocol import reference_ways as ways
from tests.support.protocol import reference_wire as wire
from tests.support.protocol.draw_vectors import DOCUMENTS
from tests.support.protocol.reference import Real, mp

Entry = dict[str, Any]
Step = tuple[int, int]

NUMBERS = ("L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "GRR", "OUE", "LOLOHA")
TOP = (1 << 64) - 1
HALF = 1 << 63


def document() -> Entry:
    return {
        "note": (
            "published: the thresholds of campaigns of manifests.json as a collector publishes "
            "them. checked: messages, and whether a device may draw with them."
        ),
        "published": [{"manifest": name, "hex": _message(name).hex()} for name in DOCUMENTS],
        "checked": list(_checked()),
    }


def less(epsilon: float) -> Real:
    """What thresholds are published for."""
    return mp.mpf(epsilon) * (1 - mp.mpf(2) ** -39) - mp.mpf(2) ** -42


def steps_of(found: Entry, index: int) -> list[Step]:
    attribute = found["attributes"][index]
    k = ways.domain_size(attribute)
    runs, reporting = way_vectors.runs(found, attribute), found["reporting"]
    if reporting == "once":
        return [ways.rounded(*reference.first_step(runs, k, less(found["eps_1"])))]
    if reporting == "nested":
        return list(_nested(runs, k, [less(level) for level in attribute["levels"]]))
    protocol, cells = ("L-GRR", 2) if reporting == "hashed" else (runs, k)
    noise = reference.calibrate(
        protocol, cells, less(found["eps_inf"]), less(found["eps_1"]), attribute["calibration"]
    )
    return [ways.rounded(noise.p1, noise.q1), ways.rounded(noise.p2, noise.q2)]


def _nested(protocol: str, k: int, levels: list[Real]) -> Iterator[Step]:
    for level, above in pairwise(levels):
        noise = reference.calibrate(ways.SECOND[protocol], k, above, level)
        yield ways.rounded(noise.p2, noise.q2)
    yield ways.rounded(*reference.first_step(protocol, k, levels[-1]))


@cache
def _every_step(name: str) -> tuple[list[Step], ...]:
    found = DOCUMENTS[name]
    return tuple(steps_of(found, index) for index in range(len(found["attributes"])))


@cache
def _digest(name: str) -> bytes:
    return wire.digest_of(wire.packed(DOCUMENTS[name]))[:8]


def _message(name: str, place: int = 0, steps: list[Step] | None = None, **changes: Any) -> bytes:
    """All steps of a campaign, with others for one attribute."""
    found = DOCUMENTS[name]
    every = list(_every_step(name))
    every[place] = every[place] if steps is None else steps
    numbers = bytes(NUMBERS.index(way_vectors.runs(found, a)) for a in found["attributes"])
    joined = b"".join(struct.pack(">QQ", *step) for each in every for step in each)
    digest = changes.get("digest") or _digest(name)
    protocols = changes.get("protocols", numbers)
    return wire.packed([1, digest, protocols, changes.get("joined", joined)])


def _checked() -> Iterator[Entry]:
    for name, found in DOCUMENTS.items():
        yield _case(name, "as published", True, _message(name))
        yield _case(name, "of another manifest", False, _message(name, digest=bytes(8)))
        yield _case(name, "a step more", False, _longer(name, 16))
        yield _case(name, "a step less", False, _longer(name, -16))
        count = len(found["attributes"])
        more = bytes(count + 1)
        yield _case(name, "a protocol more", False, _message(name, protocols=more))
        yield _case(name, "no such protocol", False, _message(name, protocols=b"\x08" * count))
        for place in range(count):
            for why, accepted, steps in _other_steps(found, place):
                told = f"attribute {place}: {why}"
                yield _case(name, told, accepted, _message(name, place, steps))
    swapped = _message("tour", protocols=bytes((0, 0, 1, 3)))
    yield _case("tour", "another protocol than the manifest names", False, swapped)


def _case(name: str, why: str, accepted: bool, message: bytes) -> Entry:
    return {"manifest": name, "why": why, "accepted": accepted, "hex": message.hex()}


def _longer(name: str, by: int) -> bytes:
    found = DOCUMENTS[name]
    every = [step for i in range(len(found["attributes"])) for step in steps_of(found, i)]
    joined = b"".join(struct.pack(">QQ", *step) for step in every)
    return _message(name, joined=joined + bytes(by) if by > 0 else joined[:by] or bytes(32))


def _other_steps(found: Entry, place: int) -> Iterator[tuple[str, bool, list[Step]]]:
    attribute = found["attributes"][place]
    k = ways.domain_size(attribute)
    sound, runs = steps_of(found, place), way_vectors.runs(found, attribute)
    cells = 2 if runs == "LOLOHA" else k
    unary = "GRR" not in runs and runs != "LOLOHA"
    drawn_first = -1 if found["reporting"] == "nested" else 0
    yield "those of M28", False, _own(found, place)
    yield "nothing is told", True, [(HALF, HALF) if unary else (2 * HALF // cells, 0)] * len(sound)
    yield "no noise", False, [(TOP, 1)] * len(sound)
    p, q = sound[drawn_first]
    yield "a little less noise", False, _with(sound, drawn_first, (p + (p >> 30), q - (q >> 30)))
    yield "the value is never kept", False, _with(sound, drawn_first, (0, q))
    if unary:
        yield "nothing is added", False, _with(sound, drawn_first, (p, 0))
    if len(sound) > 1:
        last = 0 if drawn_first else -1
        yield "no noise in the last step", False, _with(sound, last, (TOP, 1))


def _with(steps: list[Step], place: int, step: Step) -> list[Step]:
    changed = list(steps)
    changed[place] = step
    return changed


def _own(found: Entry, place: int) -> list[Step]:
    """The thresholds that a device with 80 digits calculates itself."""
    attribute = found["attributes"][place]
    k = ways.domain_size(attribute)
    runs, reporting = way_vectors.runs(found, attribute), found["reporting"]
    if reporting == "once":
        return [ways.once_thresholds(runs, k, found["eps_1"])]
    if reporting == "nested":
        return ways.nested_thresholds(runs, k, attribute["levels"])
    protocol, cells = ("L-GRR", 2) if reporting == "hashed" else (runs, k)
    budget = found["eps_inf"], found["eps_1"]
    four = reference.thresholds(protocol, cells, *budget, attribute["calibration"])
    return [(four[0], four[1]), (four[2], four[3])]

"""Vectors of the ways of reporting: chances, thresholds, codes, draws, places in a domain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.support.protocol import manifest_cases, reference
from tests.support.protocol import reference_ways as ways
from tests.support.protocol import reference_wire as wire
from tests.support.protocol.reference import digits, mp

Entry = dict[str, Any]
DEVICE = "k7f3-0b2q"
BUDGETS = ((0.1, 0.03), (1.0, 0.3), (2.0, 0.6), (4.0, 2.0), (20.0, 6.0))
SCHEDULES = ([0.6, 2.0], [0.1, 0.2, 0.4, 1.0], [0.3, 2.9, 3.0], [6.0, 12.0, 20.0])


def document() -> Entry:
    return {
        "note": (
            "thresholds: p and q over 2^64, as in calibration.json. once: of one answer. hashed: "
            "of the cell, p1, q1, p2, q2; ps and qs of supporting a value, as drawn. nested: of "
            "the step to each level from the one above it, level 1 first, the last one from the "
            "value; chances: of supporting the true value and another at each level, as drawn. "
            "levels: those filled in when an author leaves them out. choice: of auto with "
            "choose_for = pooled. codes: bytes whose bits are the cells of the values. draws: of "
            "campaigns of manifests.json; entropy: all random bytes in the order of use, for "
            "rounds (drawn while open_round is open), then for the memo, then for each report; "
            "supports: the channel (the level less one) and the indices of the supported values. "
            "domains: values and the place of each, null where there is none."
        ),
        "once": list(_once()),
        "hashed": list(_hashed()),
        "nested": list(_nested()),
        "levels": list(_levels()),
        "choice": list(_choices()),
        "codes": list(_codes()),
        "draws": list(_draws()),
        "domains": list(_domains()),
    }


def _once() -> Iterator[Entry]:
    for eps_inf, each in ((0.1, 1), (0.1, 3), (1.0, 1), (2.0, 7), (4.0, 1), (20.0, 2)):
        epsilon = eps_inf / each
        for k in (2, 5, 11, 257, 4096):
            protocol = ways.better_once(k, epsilon)
            mechanism = reference.calibrate_once(protocol, k, epsilon)
            thresholds = ways.once_thresholds(protocol, k, epsilon)
            yield {
                "k": k,
                "eps_inf": eps_inf,
                "each": each,
                "eps_1": epsilon,
                "protocol": protocol,
                "p": digits(mechanism.p1),
                "q": digits(mechanism.q1),
                "thresholds": [str(t) for t in thresholds],
            }


def _hashed() -> Iterator[Entry]:
    for eps_inf, eps_1 in BUDGETS:
        thresholds = reference.thresholds("L-GRR", 2, eps_inf, eps_1)
        keep, again = (mp.mpf(t) / ways.SCALE for t in (thresholds[0], thresholds[2]))
        yield {
            "eps_inf": eps_inf,
            "eps_1": eps_1,
            "thresholds": [str(t) for t in thresholds],
            "ps": digits(keep * again + (1 - keep) * (1 - again)),
            "qs": "0.5",
        }


def _nested() -> Iterator[Entry]:
    for levels in SCHEDULES:
        for protocol, k in (("GRR", 2), ("GRR", 5), ("GRR", 300), ("OUE", 5), ("OUE", 4096)):
            yield {
                "protocol": protocol,
                "k": k,
                "levels": levels,
                "thresholds": [
                    [str(t) for t in step] for step in ways.nested_thresholds(protocol, k, levels)
                ],
                "chances": [
                    [digits(chance) for chance in pair]
                    for pair in ways.nested_chances(protocol, k, levels)
                ],
            }


def _levels() -> Iterator[Entry]:
    for eps_inf, eps_1 in (*BUDGETS, (1e-6, 1e-7), (2.0, 1.99), (20.0, 0.01)):
        for k in (3, 40):
            levels = ways.default_levels(k, eps_inf, eps_1)
            yield {"k": k, "eps_inf": eps_inf, "eps_1": eps_1, "levels": levels}


def _choices() -> Iterator[Entry]:
    for eps_inf, eps_1 in ((1.0, 0.3), (2.0, 0.6), (4.0, 2.0)):
        for rounds in (1, 5, 30):
            for k in (2, 5, 8, 9, 12, 40):
                chosen = ways.better_pooled(k, eps_inf, eps_1, rounds)
                yield {
                    "k": k,
                    "eps_inf": eps_inf,
                    "eps_1": eps_1,
                    "rounds": rounds,
                    "chosen": chosen,
                }


def _codes() -> Iterator[Entry]:
    for device in ("a", DEVICE, "0" * 32):
        for k in (2, 9, 13, 4096):
            digest = wire.digest_of(device.encode())
            cells = ways.code(digest, device, k)
            ones = [value for value, cell in enumerate(cells) if cell]
            yield {
                "digest": digest.hex(),
                "device": device,
                "k": k,
                "code": ways.body("OUE", k, ones).hex(),
            }


# --- draws ---------------------------------------------------------------------------------------


def _draws() -> Iterator[Entry]:
    for name, index, value, first in (
        ("plain", 0, 2, 0),
        ("tour", 1, 8, 0),
        ("tour", 2, 1, 0),
        ("tour", 3, 11, 0),
        ("trend", 0, 12, 0),
        ("trend", 1, 0, 28),
        ("trend", 0, 3, 29),
        ("rare", 0, 8, 3),
        ("cells", 0, 4, 0),
        ("cells", 1, 12, 0),
        ("steps", 0, 1, 0),
        ("steps", 1, 20, 0),
        ("steps", 2, 0, 0),
    ):
        yield _drawn(name, index, value, first)


def _drawn(name: str, index: int, value: int, first: int) -> Entry:
    found = manifest_cases.BY_NAME[name]
    stream = ways.Stream(f"{name}/{index}/{value}/{first}")
    rounds = None
    if found["reporting"] == "once":
        rounds = ways.draw_rounds(first, 30, found["rounds"]["each"], stream)
    answered = drawn(found, index, value, stream)
    return {
        "manifest": name,
        "attribute": index,
        "device": DEVICE,
        "value": value,
        "open_round": first,
        "entropy": stream.taken.hex(),
        "rounds": rounds,
        **answered,
    }


def drawn(found: Entry, index: int, value: int, stream: ways.Stream, device: str = DEVICE) -> Entry:
    """The memo of a value, and the answers drawn from it."""
    reporting = found["reporting"]
    if reporting == "hashed":
        return _cells(found, index, value, stream, device)
    draw = {"memoized": _memoized, "once": _once_answer, "nested": _levels_of}
    return draw[reporting](found, index, value, stream)


def runs(found: Entry, attribute: Entry) -> str:
    """The protocol that runs for an attribute."""
    k = ways.domain_size(attribute)
    eps_inf, eps_1 = found["eps_inf"], found["eps_1"]
    if found["reporting"] == "hashed":
        return "LOLOHA"
    if attribute["protocol"] != "auto":
        return str(attribute["protocol"])
    if found["reporting"] == "once":
        return ways.better_once(k, eps_1)
    if found["reporting"] == "nested":
        return ways.better_once(k, eps_inf)
    if found["choose_for"] == "pooled":
        rounds = found["rounds"]["count"]
        return ways.better_pooled(k, eps_inf, eps_1, rounds, attribute["calibration"])
    return reference.adaptive(k, eps_inf, eps_1, attribute["calibration"])


def _told(found: Entry, index: int) -> tuple[str, int]:
    attribute = found["attributes"][index]
    return runs(found, attribute), ways.domain_size(attribute)


def _memoized(found: Entry, index: int, value: int, stream: ways.Stream) -> Entry:
    protocol, k = _told(found, index)
    method = found["attributes"][index]["calibration"]
    t = reference.thresholds(protocol, k, found["eps_inf"], found["eps_1"], method)
    memo = ways.respond(protocol, k, [value], t[:2], stream)
    said = [ways.respond(protocol, k, memo, t[2:], stream) for _ in range(3)]
    return {
        "key": value,
        "memo": ways.body(protocol, k, memo).hex(),
        "answers": [ways.body(protocol, k, each).hex() for each in said],
        "supports": [[0, each] for each in said],
    }


def _once_answer(found: Entry, index: int, value: int, stream: ways.Stream) -> Entry:
    protocol, k = _told(found, index)
    step = ways.once_thresholds(protocol, k, found["eps_1"])
    said = ways.respond(protocol, k, [value], step, stream)
    answer = ways.body(protocol, k, said).hex()
    return {"key": value, "memo": answer, "answers": [answer], "supports": [[0, said]]}


def _cells(found: Entry, index: int, value: int, stream: ways.Stream, device: str) -> Entry:
    _, k = _told(found, index)
    digest = wire.digest_of(wire.packed(found))
    cells = ways.code(digest, device, k)
    t = reference.thresholds("L-GRR", 2, found["eps_inf"], found["eps_1"])
    memo = ways.respond("L-GRR", 2, [cells[value]], t[:2], stream)
    said = [ways.respond("L-GRR", 2, memo, t[2:], stream) for _ in range(4)]
    return {
        "key": cells[value],
        "memo": ways.body("L-GRR", 2, memo).hex(),
        "answers": [ways.body("L-GRR", 2, each).hex() for each in said],
        "supports": [[0, [v for v in range(k) if [cells[v]] == each]] for each in said],
    }


def _levels_of(found: Entry, index: int, value: int, stream: ways.Stream) -> Entry:
    protocol, k = _told(found, index)
    levels = found["attributes"][index]["levels"]
    said, drawn = [value], []
    for step in reversed(ways.nested_thresholds(protocol, k, levels)):
        said = ways.respond(protocol, k, said, step, stream)
        drawn.append(said)
    drawn.reverse()
    bodies = [ways.body(protocol, k, each).hex() for each in drawn]
    sent = [min(report, len(levels) - 1) for report in range(len(levels) + 1)]
    return {
        "key": value,
        "memo": "".join(bodies),
        "answers": [f"{level + 1:02x}{bodies[level]}" for level in sent],
        "supports": [[level, drawn[level]] for level in sent],
    }


# --- domains -------------------------------------------------------------------------------------

_NUMBERS: tuple[Any, ...] = (-1e308, -1, -0.0, 0, 0.5, 1, "1", "2", 2.5, 23.9, 24, 24.1, 40, 1e308)
_TEXTS: tuple[Any, ...] = ("open", "closed", "other", "Open", "", "a", "h", "true", "7")
_ODD: tuple[Any, ...] = (None, True, False, [1], "warm", "nan", "none of these / not known")


def _domains() -> Iterator[Entry]:
    for name, index in (
        ("plain", 0),
        ("tour", 0),
        ("tour", 1),
        ("tour", 2),
        ("tour", 3),
        ("trend", 0),
    ):
        attribute = manifest_cases.BY_NAME[name]["attributes"][index]
        yield {
            "manifest": name,
            "attribute": index,
            "places": [[value, _place(attribute, value)] for value in (*_NUMBERS, *_TEXTS, *_ODD)],
        }


def _place(attribute: Entry, value: Any) -> int | None:
    if "values" in attribute:
        return _named(attribute["values"], value)
    edges, bins = attribute["edges"], ways.bins(attribute)
    total = math.isinf(edges[0]) and math.isinf(edges[-1])
    number = _number(value)
    if number is None:
        return None if total else bins
    for place in range(bins):
        if edges[place] <= number < edges[place + 1]:
            return place
    return bins - 1 if number == edges[-1] else bins


def _named(values: list[str], value: Any) -> int:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return values.index(text) if text in values else len(values) - 1


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number

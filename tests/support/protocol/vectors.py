"""The conformance vectors, made from the reference alone. Rewrite the files with

python -m tests.support.protocol.vectors --write
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

from tests.support.harness import ROOT
from tests.support.protocol import manifest_cases, message_cases, reference
from tests.support.protocol import reference_wire as wire
from tests.support.protocol.reference import (
    Real,
    Step,
    Stream,
    body,
    digits,
    domain_size,
    mp,
    respond,
)

FOLDER = ROOT / "protocol_spec" / "vectors"
CAMPAIGNS: dict[str, dict[str, Any]] = {c.name: dict(c.document) for c in manifest_cases.GOOD}

Entry = dict[str, Any]

# --- calibration.json

PAIRS = (
    *((0.001, 0.00001), (0.001, 0.0006), (0.1, 0.00001), (0.1, 0.03), (0.5, 0.3), (1.0, 0.3)),
    *((1.0, 0.6), (2.0, 0.6), (2.0, 1.2), (4.0, 0.00001), (4.0, 2.4), (10.0, 3.0), (20.0, 6.0)),
    (20.0, 19.9),
)


def calibration_document() -> Entry:
    return {
        "note": (
            "Epsilons are float64, read exactly. Other numbers have 17 significant digits. "
            "thresholds: p1, q1, p2, q2 over 2^64, for the next float64 below each epsilon, "
            "p rounded down and q up; of sets, keep over 2^64, rounded down, and the size, of RR1 "
            "and of RR2. size: of a report, 0 where unary. epsilon_after: exact loss after that "
            "number of reports of one memo. variance: of one round with n = 1 at f = 0 and "
            "f = 0.25 (superpopulation). "
            "pooled_variance: of that number of rounds with n = 1 at f = 0.25, about the devices' "
            "own frequency."
        ),
        "longitudinal": list(_longitudinal()),
        "one_time": list(_one_time()),
        "largest_eps_1": [
            {
                "protocol": protocol,
                "eps_inf": eps_inf,
                "largest_eps_1": digits(reference.largest_eps_1(protocol, eps_inf)),
            }
            for protocol in ("L-OUE", "L-SOUE")
            for eps_inf in (0.001, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 20.0)
        ],
        "choice": list(_choices()),
    }


def _longitudinal() -> Iterator[Entry]:
    for eps_inf, eps_1 in PAIRS:
        for k, method in product((2, 3, 16, 257, 4096), ("exact", "paper")):
            yield _calibrated("L-GRR", k, eps_inf, eps_1, method)
        for k in (2, 5, 16, 41, 257):
            yield _calibrated("L-SS", k, eps_inf, eps_1, "exact")
        for protocol in ("L-OUE", "L-SUE", "L-OSUE", "L-SOUE"):
            if eps_1 <= reference.largest_eps_1(protocol, eps_inf):
                yield _calibrated(protocol, 8, eps_inf, eps_1, "exact")


def _calibrated(protocol: str, k: int, eps_inf: float, eps_1: float, method: str) -> Entry:
    mechanism = reference.calibrate(protocol, k, eps_inf, eps_1, method)
    thresholds = reference.thresholds(protocol, k, eps_inf, eps_1, method)
    return {
        "protocol": protocol,
        "method": method,
        "k": k,
        "eps_inf": eps_inf,
        "eps_1": eps_1,
        **{name: digits(getattr(mechanism, name)) for name in ("p1", "q1", "p2", "q2")},
        "ps": digits(mechanism.support(True)),
        "qs": digits(mechanism.support(False)),
        "variance": [digits(mechanism.variance(1, f)) for f in (0.0, 0.25)],
        "size": 0 if mechanism.unary else mechanism.size,
        "epsilon_after": {str(t): digits(mechanism.epsilon(t)) for t in (1, 2, 3, 10, 50)},
        "pooled_variance": {
            str(t): digits(mechanism.pooled_variance(1, t, 0.25)) for t in (1, 2, 10)
        },
        "thresholds": [str(threshold) for step in thresholds for threshold in step],
    }


def _one_time() -> Iterator[Entry]:
    for protocol, k in product(reference.ONE_TIME, (2, 5, 4096)):
        for epsilon in (0.001, 0.5, 1.0, 4.0, 20.0):
            once = reference.calibrate_once(protocol, k, epsilon)
            yield {
                "protocol": protocol,
                "k": k,
                "epsilon": epsilon,
                "p1": digits(once.p1),
                "q1": digits(once.q1),
                "size": 0 if once.unary else once.size,
                "variance": [digits(once.variance(1, f)) for f in (0.0, 0.25)],
            }


def _choices() -> Iterator[Entry]:
    ties = (math.log(2), math.nextafter(math.log(2), 1.0))  # 3 e^eps_1 + 2 is just below, above 8
    pairs = ((1.0, 0.3), (2.0, 1.2), (4.0, 2.4), *((2.0, tie) for tie in ties))
    domains = (2, 3, 5, 6, 7, 8, 9, 11, 12, 16, 23, 24, 35, 36, 130, 4096)
    for (eps_inf, eps_1), k, method in product(pairs, domains, ("exact", "paper")):
        chosen = reference.adaptive(k, eps_inf, eps_1, method)
        budget = {"k": k, "eps_inf": eps_inf, "eps_1": eps_1}
        yield {**budget, "method": method, "chosen": chosen}


# --- mechanisms.json

BUDGETS = ((0.1, 0.03), (1.0, 0.3), (2.0, 0.6), (4.0, 2.0), (20.0, 6.0))


def mechanisms_document() -> Entry:
    return {
        "note": (
            "thresholds: as in calibration.json, two numbers for each step. once: of one answer. "
            "hashed: of the cell; ps and qs of supporting a value, as drawn. nested: of "
            "the step to each level from the one above it, level 1 first, the last one from the "
            "value; chances: probabilities of supporting the true value and another at each "
            "level, as drawn. levels: those filled in when an author leaves them out. choice: of "
            "auto with choose_for = pooled. codes: bytes whose bits are the cells of the values. "
            "domains: values and the place of each, null where there is none."
        ),
        "once": list(_once()),
        "hashed": list(_hashed()),
        "nested": list(_nested()),
        "levels": [
            {"eps_inf": a, "eps_1": b, "levels": reference.default_levels(a, b)}
            for a, b in (*BUDGETS, (1e-6, 1e-7), (2.0, 1.99), (20.0, 0.01))
        ],
        "choice": [
            {
                "k": k,
                "eps_inf": a,
                "eps_1": b,
                "rounds": rounds,
                "chosen": reference.adaptive(k, a, b, rounds=rounds),
            }
            for a, b in ((1.0, 0.3), (2.0, 0.6), (4.0, 2.0))
            for rounds in (1, 5, 30)
            for k in (2, 5, 8, 9, 12, 20, 40, 130)
        ],
        "codes": list(_codes()),
        "domains": list(_domains()),
    }


def _once() -> Iterator[Entry]:
    for eps_inf, each in ((0.1, 1), (0.1, 3), (1.0, 1), (2.0, 7), (4.0, 1), (20.0, 2)):
        epsilon = eps_inf / each
        for k in (2, 5, 11, 257, 4096):
            protocol = reference.better_once(k, epsilon)
            mechanism = reference.calibrate_once(protocol, k, epsilon)
            yield {
                "k": k,
                "eps_inf": eps_inf,
                "each": each,
                "eps_1": epsilon,
                "protocol": protocol,
                "p": digits(mechanism.p1),
                "q": digits(mechanism.q1),
                "thresholds": list(map(str, reference.once_thresholds(protocol, k, epsilon))),
            }


def _hashed() -> Iterator[Entry]:
    for eps_inf, eps_1 in BUDGETS:
        thresholds = reference.thresholds("L-GRR", 2, eps_inf, eps_1)
        keeps = (mp.mpf(kept) / reference.SCALE for kept, _ in thresholds)
        keep, again = (kept + (1 - kept) / 2 for kept in keeps)
        yield {
            "eps_inf": eps_inf,
            "eps_1": eps_1,
            "thresholds": [str(t) for step in thresholds for t in step],
            "ps": digits(keep * again + (1 - keep) * (1 - again)),
            "qs": "0.5",
        }


def _nested() -> Iterator[Entry]:
    schedules = ([0.6, 2.0], [0.1, 0.2, 0.4, 1.0], [0.3, 2.9, 3.0], [6.0, 12.0, 20.0])
    kinds = (
        *(("GRR", 2), ("GRR", 5), ("GRR", 300), ("OUE", 5), ("OUE", 4096)),
        *(("SS", 2), ("SS", 5), ("SS", 41), ("SS", 100), ("SS", 1000)),
    )
    for levels, (protocol, k) in product(schedules, kinds):
        steps = reference.nested_thresholds(protocol, k, levels)
        pairs = reference.nested_probabilities(protocol, k, levels)
        yield {
            "protocol": protocol,
            "k": k,
            "levels": levels,
            "thresholds": [[str(t) for t in step] for step in steps],
            "chances": [[digits(probability) for probability in pair] for pair in pairs],
        }


def _codes() -> Iterator[Entry]:
    for device, k in product(("a", "k7f3-0b2q", "0" * 32), (2, 9, 13, 4096)):
        digest = wire.digest_of(device.encode())
        cells = reference.code(digest, device, k)
        code = body("OUE", k, [value for value, cell in enumerate(cells) if cell])
        yield {"digest": digest.hex(), "device": device, "k": k, "code": code.hex()}


_VALUES: tuple[Any, ...] = (
    *(-1e308, -1, -0.0, 0, 0.5, 1, "1", "2", 2.5, 23.9, 24, 24.1, 40, 1e308, "open", "closed"),
    *("other", "Open", "", "a", "h", "true", "7", None, True, False, [1], "warm", "nan"),
    "none of these / not known",
)


def _domains() -> Iterator[Entry]:
    for name, index in (("plain", 0), *(("tour", i) for i in range(4)), ("trend", 0)):
        attribute = CAMPAIGNS[name]["attributes"][index]
        places = [[value, _place(attribute, value)] for value in _VALUES]
        yield {"manifest": name, "attribute": index, "places": places}
    pair = CAMPAIGNS["cars"]["attributes"][1]
    both = [["small", 12], ["vast", 30], ["large", 29.5], ["large", "a lot"], [None, None]]
    places = [[value, _place(pair, value)] for value in both]
    yield {"manifest": "cars", "attribute": 1, "places": places}


def _place(attribute: Entry, value: Any) -> int | None:
    if "cross" in attribute:
        row, column = map(_place, attribute["cross"], value)
        assert row is not None
        assert column is not None
        return row * domain_size(attribute["cross"][1]) + column
    if "values" in attribute:
        values: list[str] = attribute["values"]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return values.index(text) if text in values else len(values) - 1
    edges = attribute["edges"]
    bins = len(edges) - 1
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        return None if domain_size(attribute) == bins else bins
    for place in range(bins):
        if edges[place] <= number < edges[place + 1]:
            return place
    return bins - 1 if number == edges[-1] else bins


# --- draws.json


def draws_document() -> Entry:
    return {
        "note": (
            "A device from joining to its reports, in campaigns of manifests.json. entropy: all "
            "random bytes in the order of use: for the attribute, for the rounds (once; drawn "
            "while open_round is open), for the memo of the value with that index, then for each "
            "report (once: for the answer of its first round alone). reports: the round, the topic "
            "in the namespace allomfree, and the bytes. supports: of each report, the channel (the "
            "level less one) and the indices of the supported values. tag and page: where the "
            "receipt of the first report is looked for."
        ),
        "devices": [
            _device(name, index, value, open_round)
            for name, found in CAMPAIGNS.items()
            for index, attribute in enumerate(found["attributes"])
            for value, open_round in ((0, 0), (domain_size(attribute) - 1, 20))
        ],
    }


def _device(name: str, index: int, value: int, open_round: int) -> Entry:
    found = CAMPAIGNS[name]
    device = f"{name}-{index}"
    stream = _joined(found, f"{name}/{index}/{value}", index)
    rounds = None
    if found["reporting"] == "once":
        count, each = found["rounds"]["count"], found["rounds"]["each"]
        rounds = reference.draw_rounds(open_round, count, each, stream)
    key, memo, answers, supports = _drawn(found, index, value, stream, device)
    first = rounds[0] if rounds else open_round
    payload = wire.packed(found)
    digest, campaign = wire.digest_of(payload), wire.campaign_of(found["slug"], payload)
    longest = max(size for *_, size in _attribute_sizes(found))
    return {
        "manifest": name,
        "device": device,
        "value": value,
        "open_round": open_round,
        "entropy": stream.taken.hex(),
        "attribute": index,
        "rounds": rounds,
        "key": key,
        "memo": memo.hex(),
        "reports": [
            {
                "round": number,
                "topic": f"allomfree/v1/{campaign}/up/{device}/report",
                "hex": wire.report(digest, number, index, answer.ljust(longest, b"\0")).hex(),
            }
            for number, answer in enumerate(answers, first)
        ],
        "supports": supports,
        "tag": wire.tag_of(digest, first, device).hex(),
        "page": wire.page_of(digest, device, found["receipt_pages"]),
    }


def _joined(found: Entry, label: str, index: int) -> Stream:
    """Random bytes with which the device draws that attribute first."""
    for attempt in range(10_000):
        stream = Stream(f"device/{label}/{attempt}")
        if stream.below(len(found["attributes"])) == index:
            return stream
    raise AssertionError(label)


def _drawn(
    found: Entry, index: int, value: int, stream: Stream, device: str
) -> tuple[int, bytes, list[bytes], list[list[Any]]]:
    """The memo's key, the memo of a value, answers drawn from it, and what those support."""
    attribute, reporting = found["attributes"][index], found["reporting"]
    protocol, k = runs(found, attribute), domain_size(attribute)
    steps = steps_of(found, index)
    if reporting == "hashed":
        cells = reference.code(wire.digest_of(wire.packed(found)), device, k)
        memo = respond("GRR", 2, [cells[value]], steps[0], stream)
        said = [respond("GRR", 2, memo, steps[1], stream) for _ in range(4)]
        supports = [[0, [v for v in range(k) if [cells[v]] == each]] for each in said]
        return cells[value], body("GRR", 2, memo), [body("GRR", 2, s) for s in said], supports
    if reporting == "nested":
        levels, current = list[list[int]](), [value]
        for step in reversed(steps):
            current = respond(protocol, k, current, step, stream)
            levels.insert(0, current)
        bodies = [body(protocol, k, each) for each in levels]
        sent = [min(report, len(levels) - 1) for report in range(len(levels) + 1)]
        answers = [bytes([level + 1]) + bodies[level] for level in sent]
        return value, b"".join(bodies), answers, [[level, levels[level]] for level in sent]
    memo = respond(protocol, k, [value], steps[0], stream)
    said = [memo]
    if reporting == "memoized":
        said = [respond(protocol, k, memo, steps[1], stream) for _ in range(3)]
    answers = [body(protocol, k, each) for each in said]
    return value, body(protocol, k, memo), answers, [[0, each] for each in said]


def runs(found: Mapping[str, Any], attribute: Entry) -> str:
    """The protocol that runs for an attribute."""
    k, eps_inf, eps_1 = domain_size(attribute), found["eps_inf"], found["eps_1"]
    if found["reporting"] == "hashed":
        return "LOLOHA"
    if attribute["protocol"] != "auto":
        return str(attribute["protocol"])
    if found["reporting"] == "once":
        return reference.better_once(k, eps_1)
    if found["reporting"] == "nested":
        return reference.better_nested(k, attribute["levels"])
    rounds = found["rounds"]["count"] if found["choose_for"] == "pooled" else 1
    return reference.adaptive(k, eps_inf, eps_1, attribute["calibration"], rounds)


def steps_of(found: Entry, index: int, adjusted: reference.Adjust = reference.lower) -> list[Step]:
    """Thresholds of each step, RR1 first (nested: level 1 first)."""
    attribute = found["attributes"][index]
    k, protocol = domain_size(attribute), runs(found, attribute)
    if found["reporting"] == "once":
        return [reference.once_thresholds(protocol, k, found["eps_1"], adjusted)]
    if found["reporting"] == "nested":
        return reference.nested_thresholds(protocol, k, attribute["levels"], adjusted)
    protocol, k = ("L-GRR", 2) if protocol == "LOLOHA" else (protocol, k)
    budget = found["eps_inf"], found["eps_1"], attribute["calibration"]
    return reference.thresholds(protocol, k, *budget, adjusted)


# --- thresholds.json: each case is far from the limit, or exactly at one that the text names.

NUMBERS = (*("L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "GRR", "OUE", "LOLOHA", "L-SS", "SS"),)
TOP = (1 << 64) - 1
HALF = 1 << 63


def thresholds_document() -> Entry:
    return {
        "note": (
            "published: the thresholds of campaigns of manifests.json as a collector publishes "
            "them. checked: messages, and whether a device may draw with them."
        ),
        "published": [{"manifest": name, "hex": _message(name).hex()} for name in CAMPAIGNS],
        "checked": [
            {"manifest": name, "why": why, "accepted": accepted, "hex": message.hex()}
            for name, why, accepted, message in _checked()
        ],
    }


def less(epsilon: float) -> Real:
    """What thresholds are published for."""
    return mp.mpf(epsilon) * (1 - mp.mpf(2) ** -39) - mp.mpf(2) ** -42


@cache
def _published_steps(name: str) -> tuple[list[Step], ...]:
    return tuple(steps_of(CAMPAIGNS[name], i, less) for i in range(_count(name)))


def _count(name: str) -> int:
    return len(CAMPAIGNS[name]["attributes"])


def _message(name: str, place: int = 0, steps: list[Step] | None = None, **changes: Any) -> bytes:
    """All steps of a campaign, with others for one attribute."""
    found, every = CAMPAIGNS[name], list(_published_steps(name))
    every[place] = every[place] if steps is None else steps
    numbers = bytes(NUMBERS.index(runs(found, a)) for a in found["attributes"])
    joined = b"".join(struct.pack(">QQ", *step) for each in every for step in each)
    by = changes.get("longer", 0)
    joined = joined + bytes(by) if by >= 0 else joined[:by] or bytes(32)
    digest = changes.get("digest") or wire.digest_of(wire.packed(found))[:8]
    return wire.packed([1, digest, changes.get("protocols", numbers), joined])


def _checked() -> Iterator[tuple[str, str, bool, bytes]]:
    for name in CAMPAIGNS:
        count = _count(name)
        yield name, "as published", True, _message(name)
        yield name, "of another manifest", False, _message(name, digest=bytes(8))
        yield name, "a step more", False, _message(name, longer=16)
        yield name, "a step less", False, _message(name, longer=-16)
        yield name, "a protocol more", False, _message(name, protocols=bytes(count + 1))
        yield name, "no such protocol", False, _message(name, protocols=b"\x0a" * count)
        for place in range(count):
            for why, accepted, steps in _other_steps(name, place):
                yield name, f"attribute {place}: {why}", accepted, _message(name, place, steps)
    swapped = _message("tour", protocols=bytes((0, 8, 1, 8)))
    yield "tour", "another protocol than the manifest names", False, swapped


def _other_steps(name: str, place: int) -> Iterator[tuple[str, bool, list[Step]]]:
    found = CAMPAIGNS[name]
    attribute, sound = found["attributes"][place], _published_steps(name)[place]
    protocol = runs(found, attribute)
    unary = protocol not in (*reference.SETS, "LOLOHA")
    drawn_first = -1 if found["reporting"] == "nested" else 0
    p, q = sound[drawn_first]

    def changed(at: int, step: Step) -> list[Step]:
        steps = list(sound)
        steps[at] = step
        return steps

    yield "those of M28", False, steps_of(found, place)
    nothing = [(HALF, HALF) if unary else (0, size) for _, size in sound]
    yield "nothing is told", True, nothing
    yield "no noise", False, [(TOP, 1 if unary else size) for _, size in sound]
    yield "a little less noise", False, changed(drawn_first, (p + (p >> 30), q - (q >> 30)))
    yield "nothing is added", False, changed(drawn_first, (p, 0))
    if unary:
        yield "the value is never kept", False, changed(drawn_first, (0, q))
    else:
        yield "sets of all values", False, [(p, domain_size(attribute)) for p, _ in sound]
    if not unary and len(sound) > 1 and protocol.endswith("SS"):
        last = 0 if drawn_first else -1
        yield "sets that shrink", False, changed(last, (sound[last][0], sound[drawn_first][1] - 1))
        yield "larger sets, which tell less", True, changed(last, (0, sound[last][1] + 1))
    if len(sound) > 1:
        last, size = (0, sound[0][1]) if drawn_first else (-1, sound[-1][1])
        yield "no noise in the last step", False, changed(last, (TOP, 1 if unary else size))


# --- manifests.json and messages.json


def manifests_document() -> Entry:
    return {
        "note": (
            "good: the TOML an analyst writes and the canonical bytes it becomes. "
            "refused: TOML that must not become a manifest, and a field the refusal must name. "
            "refused_fields: bytes that are no manifest, with the field that the reference names, "
            "for each fault that a field can have."
        ),
        "good": [_good_manifest(case) for case in manifest_cases.GOOD],
        "refused": load("manifests.json")["refused"],  # written by hand, in the file
        "refused_fields": [
            {"why": why, "field": field, "hex": payload.hex()}
            for why, field, payload in manifest_cases.refused()
        ],
    }


def _good_manifest(case: manifest_cases.GoodManifest) -> Entry:
    payload = wire.packed(case.document)
    digest, pages = wire.digest_of(payload), case.document["receipt_pages"]
    sizes = list(_attribute_sizes(case.document))
    longest = max(size for *_, size in sizes)
    return {
        "name": case.name,
        "toml": case.toml,
        "hex": payload.hex(),
        "digest": digest.hex(),
        "campaign": wire.campaign_of(case.document["slug"], payload),
        "attributes": [
            {"name": name, "k": k, "runs": runs, "answer_bytes": answer, "body_bytes": longest}
            for name, k, runs, answer in sizes
        ],
        "receipts": [
            {
                "device": device,
                "round": number,
                "tag": wire.tag_of(digest, number, device).hex(),
                "page": wire.page_of(digest, device, pages),
            }
            for device in ("a", "7f3a-0c", "device-" + "0" * 25)
            for number in (0, 29)
        ],
    }


def _attribute_sizes(found: Mapping[str, Any]) -> Iterator[tuple[str, int, str, int]]:
    for attribute in found["attributes"]:
        k, protocol = domain_size(attribute), runs(found, attribute)
        size = wire.answer_bytes(found["reporting"], protocol, k)
        names = [part["name"] for part in attribute.get("cross", [attribute])]
        yield "-".join(names), k, protocol, size


def messages_document() -> Entry:
    return {
        "note": (
            "Bytes are hex. good: fields and their one encoding. bad: bytes that no decoder of "
            "that kind accepts, with the outcome. unfit: well-formed reports that a manifest of "
            "manifests.json does not allow. digest8 is that of 'fleet', and of every message "
            "whose fields do not name another manifest."
        ),
        "digest8": message_cases.DIGEST[:8].hex(),
        "good": [
            {"kind": kind, "fields": _as_json(fields), "hex": payload.hex()}
            for kind, fields, payload in message_cases.good()
        ],
        "bad": [
            {"kind": kind, "why": why, "outcome": outcome, "hex": payload.hex()}
            for kind, why, payload, outcome in message_cases.bad()
        ],
        "unfit": [
            {"manifest": name, "why": why, "outcome": outcome, "hex": payload.hex()}
            for name, why, payload, outcome in message_cases.unfit()
        ],
    }


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return value


# --- changes.json


def changes_document() -> Entry:
    return {
        "note": (
            "Exact probabilities, 17 digits; compare to 12. trends: all devices of a round report "
            "in those after it, where new[i] others join; rounds are the first and last of each. "
            "raw, whose average by n is a histogram, and a weight of each value. change: of the "
            "fitted line (period 0) from the first round's beginning to the last one's end; else "
            "of a wave of that period in rounds, highest less lowest. variance: of a line, for the "
            "histogram that is fitted in each round, and no less than on average. "
            "result_differences: of two estimates with their limits and the errors' correlation."
        ),
        "trends": [
            _trend(*case)
            for case in (
                ("memoized", "L-GRR", 4, 0.0, (5000, 0, 0, 0), 1),
                ("memoized", "L-OSUE", 6, 0.0, (5000, 300, 1000, 0), 1),
                ("memoized", "L-GRR", 3, 0.0, (9000, 0, 2000, 7, 0, 1), 1),
                ("once", "GRR", 4, 0.0, (200, 213, 250), 5),
                ("once", "OUE", 40, 0.0, (200, 213, 250, 204), 1),
                ("once", "GRR", 4, 24.0, (200, 213, 250, 190, 210, 222), 4),
            )
        ],
        "result_differences": [
            _difference([0.3, 0.2, 0.42], [0.25, 0.2, 0.36], 0.0),
            _difference([0.0, 0.0, 0.1], [0.5, 0.4, 0.6], 0.4),
        ],
    }


def _trend(
    reporting: str, protocol: str, k: int, period: float, new: tuple[int, ...], width: int
) -> Entry:
    memos = reporting == "memoized"
    known = (reference.calibrate if memos else reference.calibrate_once)(
        protocol, k, *((2.0, 0.6) if memos else (2.0,))
    )
    n = [sum(new[: i + 1]) if memos else size for i, size in enumerate(new)]
    first = [i * width for i in range(len(n))]
    weights = [float((3 * v) % 5) for v in range(k)]
    raw = [[((v + 1) * (i + 2)) % 7 / 8 for v in range(k - 1)] for i in range(len(n))]
    raw = [[x / k for x in row] + [1 - sum(row) / k] for row in raw]
    y = [
        mp.fsum((c - mp.mpf(sum(weights)) / k) * mp.mpf(x) for c, x in zip(weights, row))
        for row in raw
    ]
    moments = [[mp.mpf(at + j) + 0.5 for j in range(width)] for at in first]
    columns, parts = _parts(moments, n, period)
    fitted = mp.matrix(columns).T * mp.matrix(parts) * mp.matrix(raw)
    noise = [reference.report_variance(known, fitted[i, :], weights) for i in range(len(n))]
    span = moments[-1][-1] - moments[0][0] + 1
    parts = parts[1:] if period else [[span * h for h in parts[1]]]
    fresh = [within if memos else within + kept for within, kept in noise]
    fresh = [max(each, mp.fsum(fresh) / len(n)) for each in fresh]
    variance = mp.fsum(h * h * each / m for h, m, each in zip(parts[-1], n, fresh))
    if memos:  # each device's parts in all the rounds since it joined
        stays = (mp.fsum(h / m for h, m in list(zip(parts[-1], n))[i:]) for i in range(len(n)))
        kept = mp.fsum(each for _, each in noise) / len(n)
        variance += mp.fsum(joined * kept * x**2 for joined, x in zip(new, stays))
    sums = [mp.fsum(h * x for h, x in zip(row, y)) for row in parts]
    change = 2 * mp.sqrt(sums[0] ** 2 + sums[1] ** 2) if period else sums[0]
    heard = [[n[i - 1] if i and memos else 0] * 2 for i in range(len(n))]
    return {
        "reporting": reporting,
        "protocol": protocol,
        "k": k,
        "period": period,
        "n": n,
        "rounds": [[at, at + width - 1] for at in first],
        "response": heard,
        "raw": raw,
        "weights": weights,
        "change": digits(change),
        **({} if period else {"variance": digits(variance)}),
    }


def _parts(
    moments: list[list[Real]], n: list[int], period: float
) -> tuple[list[list[Real]], list[list[Real]]]:
    """A line's or a wave's functions in each round, and the rounds' parts in each coefficient:
    normal equations, solved."""
    waves = [lambda x: mp.cos(2 * mp.pi * x / period), lambda x: mp.sin(2 * mp.pi * x / period)]
    shapes = [lambda _x: mp.mpf(1), *(waves if period else [lambda x: x])]
    columns = [[mp.fsum(map(g, at)) / len(at) for at in moments] for g in shapes]
    weighed = mp.matrix([[m * x for m, x in zip(n, row)] for row in columns])
    solved = (weighed * mp.matrix(columns).T) ** -1 * weighed
    return columns, solved.tolist()


def _difference(first: list[float], second: list[float], correlation: float) -> Entry:
    (x, low, high), (y, below, above) = ([mp.mpf(v) for v in each] for each in (first, second))
    rho = mp.mpf(correlation)
    down, up = (
        mp.sqrt(a**2 + b**2 - 2 * rho * a * b)
        for a, b in ((x - low, above - y), (high - x, y - below))
    )
    entry = {"first": first, "second": second, "correlation": correlation}
    return entry | {"low": digits(x - y - down), "high": digits(x - y + up)}


# --- estimators.json

ROUNDS: Entry = {"weights": "reports", "reports": [1, 20], "devices": [6000, 2500]}
EPS: Entry = {"eps_inf": 2.0, "eps_1": 0.6}


def estimators_document() -> Entry:
    return {
        "note": (
            "Exact probabilities, 17 digits; compare to 12. Weights are by reports. pairs: raw is "
            "a table read row by row; values and variance of each question's shares, of the table "
            "t shifted to one; unexplained: of the relation test, the least sum of (t_ij - u_i c_j "
            "- r_i v_j)^2 / (d_i e_j), where r and c are the shares projected, d_i = A + S r_i / "
            "columns, e_j = A + S c_j / rows, A and S = B + dilution as in statistics.json. "
            "plausibility: of one of that many results; sum_z is null where all sums are one. "
            "lies: shift that a share of devices can cause, and the share that error allows; "
            "levels if nested. post_stratified: groups weighed by totals; variance and skewness at "
            "f. unevenness: by reports against by devices, at most."
        ),
        "pairs": [
            _pair("L-GRR", (2, 3), [0.1, 0.2, 0.05, 0.3, 0.1, 0.25]),
            _pair("L-OSUE", (2, 3), [0.1, 0.21, 0.05, 0.35, 0.1, 0.25]),
            _pair("L-SOUE", (3, 2), [0.4, -0.06, 0.03, 0.3, -0.02, 0.31]),
            _pair("L-GRR", (3, 3), [0.5, 0.1, -0.04, 0.3, 0.2, -0.02, -0.05, 0.03, -0.02]),
        ],
        "plausibility": [
            _plausible("L-OSUE", [0.3, 0.1, -0.01, 0.4, 0.3], 1, 0.01),
            _plausible("L-SOUE", [0.2, -0.4, 0.1, 0.2, 0.3], 60, 0.05),
            _plausible("L-GRR", [0.5, -0.125, 0.25, 0.25, 0.125], 7, 0.01),
        ],
        "lies": [
            _lie("L-GRR", 5, [], 0.01, 0.05, 1.0),
            _lie("L-OSUE", 8, [], 0.02, 0.1, 2.5),
            _lie("L-SS", 41, [], 0.3, 0.05, 4.0),
            _lie("OUE", 12, [0.3, 2.9], 0.01, 200.0, 1.0),
        ],
        "post_stratified": [
            _stratified("L-GRR", [700, 300], [[[1], [400]], [[1, 7], [50, 900]]]),
            _stratified("L-GRR", [3, 2], [[[1, 4], [60, 40]], [[2], [30]]]),
            _stratified("L-OSUE", [1, 0, 4], [[[2], [90]], [[1], [5]], [[1, 3], [800, 70]]]),
        ],
        "unevenness": [_uneven([1, 2, 5], [2, 1, 2]), _uneven([1, 30, 365], [196, 50, 4])],
    }


def _pair(protocol: str, shape: tuple[int, int], raw: list[float]) -> Entry:
    a, b = shape
    k, known = a * b, reference.calibrate(protocol, a * b, 2.0, 0.6)
    missing = (1 - mp.fsum(map(mp.mpf, raw))) / k
    table = [mp.mpf(x) + missing for x in raw]
    cells = [[v // b == i for v in range(k)] for i in range(a)]
    across = [[v % b == j for v in range(k)] for j in range(b)]
    shares = [[mp.fsum(x for x, own in zip(table, c) if own) for c in q] for q in (cells, across)]
    entry = {"protocol": protocol, "k": k, **EPS, **ROUNDS, "shape": list(shape), "raw": raw}
    return entry | {
        "margins": [
            {
                "values": list(map(digits, values)),
                "variance": [digits(_sum_variance(known, table, list(map(float, c)))) for c in q],
            }
            for values, q in zip(shares, (cells, across))
        ],
        "unexplained": digits(_unexplained(known, table, shares)),
    }


def _sum_variance(known: reference.Mechanism, f: list[Real], c: list[float]) -> Real:
    """Of sum c_v raw_v."""
    within, kept = reference.report_variance(known, f, c)
    groups = reference.weighed(ROUNDS["reports"], ROUNDS["devices"])
    return mp.fsum(size * w**2 * (within / m + kept) for m, size, w in groups)


def _unexplained(known: reference.Mechanism, table: list[Real], shares: list[list[Real]]) -> Real:
    """The least sum of (t_ij - u_i columns_j - rows_i v_j)^2 / (d_i e_j) over all u and v.

    d and e are half the variance of the difference of two cells as frequent as those of a row (a
    column) are on average.
    """
    rows, columns = map(reference.projected, shares)
    a, b = len(rows), len(columns)
    others = [0.0] * (a * b - 2)
    base, slope = (
        _sum_variance(known, [x, x, 1 - 2 * x, *others[1:]], [1.0, -1.0, *others]) / 2
        for x in (mp.mpf(0), mp.mpf(1) / 2)
    )
    slope = 2 * (slope - base)
    d, e = ([base + slope * x / n for x in q] for q, n in ((rows, b), (columns, a)))
    scale = [1 / mp.sqrt(x * y) for x in d for y in e]
    of_rows = [[columns[v % b] * (v // b == i) for v in range(a * b)] for i in range(a)]
    of_columns = [[rows[v // b] * (v % b == j) for v in range(a * b)] for j in range(1, b)]
    shapes = mp.matrix([[s * x for s, x in zip(scale, row)] for row in of_rows + of_columns])
    wanted = mp.matrix([s * x for s, x in zip(scale, table)])
    left = wanted - shapes.T * mp.lu_solve(shapes * shapes.T, shapes * wanted)
    return mp.fsum(x**2 for x in left)


def _plausible(protocol: str, raw: list[float], results: int, false_alarms: float) -> Entry:
    k, known = len(raw), reference.calibrate(protocol, len(raw), 2.0, 0.6)
    groups = reference.weighed(ROUNDS["reports"], ROUNDS["devices"])
    held, none = (reference.cumulants(known, mp.mpf(f), groups) for f in (1, 0))
    variance, third = (x + (k - 1) * y for x, y in zip(held, none))
    chance = mp.mpf(false_alarms) / results / (2 if known.unary else 1)
    limits = [mp.sqrt(2) * mp.erfinv(1 - 2 * x) for x in (chance / 2, chance / k)]
    total, sum_z = mp.fsum(map(mp.mpf, raw)), None
    if known.unary:
        limits[0] += abs(third / variance ** mp.mpf(1.5)) * (limits[0] ** 2 - 1) / 6
        sum_z = digits((total - 1) / mp.sqrt(variance))
    entry = {"protocol": protocol, "k": k, **EPS, **ROUNDS, "raw": raw}
    return entry | {
        "results": results,
        "false_alarms": false_alarms,
        "total": digits(total),
        "sum_z": sum_z,
        "sum_limit": digits(limits[0]),
        "lowest": raw.index(min(raw)),
        "lowest_z": digits(min(raw) / mp.sqrt(none[0])),
        "lowest_limit": digits(limits[1]),
    }


def _lie(protocol: str, k: int, levels: list[float], *given: float) -> Entry:
    """A liar's bit about a value that it does not hold is 0 or 1 instead of qs on average."""
    every = [reference.calibrate_once(protocol, k, e) for e in levels]
    every = every or [reference.calibrate(protocol, k, 2.0, 0.6)]
    most = max(abs(y - m.support(False)) / m.gap() for m in every for y in (0, 1))
    share, error, weight = map(mp.mpf, given)
    entry = {"protocol": protocol, "k": k, **EPS, "levels": levels}
    return entry | {
        **dict(zip(("share", "error", "weight"), given)),
        "shift": digits(min(share * weight, 1) * most),
        "share_for_error": digits(min(error / weight / most, 1)),
    }


def _stratified(protocol: str, totals: list[int], groups: list[list[list[int]]]) -> Entry:
    k, at = 5, [0.0, 0.25, 0.7]
    known = reference.calibrate(protocol, k, 2.0, 0.6)
    part = [mp.mpf(total) / sum(totals) for total in totals]
    raw = [[((v + 2) * (i + 1)) % 7 / 16 for v in range(k)] for i in range(len(groups))]
    every = [(p, *each) for p, g in zip(part, groups) for each in reference.weighed(*g)]
    devices = [(m, size, p * w) for p, m, size, w in every]
    found = [reference.cumulants(known, mp.mpf(f), devices) for f in at]
    return {"protocol": protocol, "k": k, **EPS, "totals": totals} | {
        "groups": [{"reports": g[0], "devices": g[1], "raw": r} for g, r in zip(groups, raw)],
        "f": at,
        "raw": [digits(mp.fsum(p * row[v] for p, row in zip(part, raw))) for v in range(k)],
        "variance": [digits(variance) for variance, _ in found],
        "skewness": [digits(third / variance ** mp.mpf(1.5)) for variance, third in found],
        "n_eff": digits(1 / mp.fsum(size * w**2 for _, size, w in devices)),
    }


def _uneven(reports: list[int], devices: list[int]) -> Entry:
    """The largest over all sets of groups that alone hold a value."""
    groups, each = reference.weighed(reports, devices), mp.mpf(1) / sum(devices)
    apart = [size * (w - each) for _, size, w in groups]
    holders = product((0, 1), repeat=len(apart))
    most = max(abs(mp.fsum(h * x for h, x in zip(held, apart))) for held in holders)
    return {"reports": reports, "devices": devices, "largest": digits(most)}


DOCUMENTS = {
    "calibration.json": calibration_document,
    "changes.json": changes_document,
    "draws.json": draws_document,
    "estimators.json": estimators_document,
    "manifests.json": manifests_document,
    "mechanisms.json": mechanisms_document,
    "messages.json": messages_document,
    "thresholds.json": thresholds_document,
}
# Not made here: topics are a list of cases written by hand; the statistics were worked out by other
# means in 50 digits, and `scripts/check_vectors.py` compares the code with them.
FROZEN = ("statistics.json", "topics.json")


def text(document: Entry) -> str:
    """JSON with one entry of a list to a line, so that a change shows as a changed line."""

    def member(name: str, value: Any) -> str:
        if not isinstance(value, list):
            return f" {_line(name)}: {_line(value)}"
        return f" {_line(name)}: [\n" + ",\n".join(f"  {_line(item)}" for item in value) + "\n ]"

    return "{\n" + ",\n".join(member(*each) for each in document.items()) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def load(name: str) -> Entry:
    """A vector file as implementers find it."""
    document: Entry = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    for file, build in DOCUMENTS.items():
        (FOLDER / file).write_text(text(build()), encoding="utf-8")

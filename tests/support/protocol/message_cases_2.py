"""Messages of version 2 for the vectors: reports of every way of reporting, and results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.protocol import reference_wire as wire
from tests.support.protocol.manifest_cases_2 import BY_NAME
from tests.support.protocol.message_cases import DIGEST, RESULT, SERIES, Bad, Fields, Good

DIGESTS = {name: wire.digest_of(wire.packed(found)) for name, found in BY_NAME.items()}

# Manifest, round, attribute, body: the answer and what stands behind it.
REPORTS: tuple[tuple[str, int, int, bytes], ...] = (
    ("plain", 0, 0, b"\x02"),
    ("tour", 29, 0, b"\x02\x00"),
    ("tour", 0, 1, b"\x08\x00"),
    ("tour", 0, 2, b"\xe0\x00"),
    ("tour", 0, 3, b"\xff\xf0"),
    ("trend", 7, 0, b"\x0c"),
    ("trend", 7, 1, b"\x00"),
    ("rare", 29, 0, b"\x08"),
    ("cells", 0, 0, b"\x00"),
    ("cells", 0, 1, b"\x01"),
    ("steps", 0, 0, b"\x01\x02\x00\x00\x00"),
    ("steps", 5, 1, b"\x04\xff\xff\xff\xfe"),
    ("steps", 5, 2, b"\x01\x00\x80\x00\x00"),
)

NUMBERS: Fields = {
    "mean": 11.5,
    "mean_low": 10.25,
    "mean_high": 12.75,
    "mean_bias": 1.0,
    "cdf": [0.5],
    "cdf_low": [0.25],
    "cdf_high": [0.75],
    "quantiles": [
        [0.1, None, None, 2.0],
        [0.25, 1.5, 0.0, 4.0],
        [0.5, 3.0, 2.0, 4.0],
        [0.75, 5.0, 2.0, None],
        [0.9, None, 4.0, None],
    ],
}
NO_MEAN: Fields = {
    **NUMBERS,
    **dict.fromkeys(("mean", "mean_low", "mean_high", "mean_bias")),
    "cdf": [0.25, 0.5],
    "cdf_low": [0.125, 0.25],
    "cdf_high": [0.5, 0.75],
}


def _second(fields: Fields, **changes: Any) -> Fields:
    """A result of version 1 with what version 2 adds, in its order."""
    number, last = fields["round"], fields["rounds"] - 1
    more: Fields = {
        "reporting": "memoized",
        "first": 0 if number is None else number,
        "last": last if number is None else number,
        "n_eff": float(fields["devices"]),
        "difference": {"pair": 0.125, "tallest": 0.1875},
        "numbers": None,
    }
    found = {**fields, **more, **changes}
    head = ("digest", "attribute", "reporting", "round", "first", "last", "rounds", "protocol")
    middle = ("n", "devices", "n_eff", "min_reports", "confidence", "device_bound", "counts")
    return {
        name: found[name] for name in (*head, *middle, *SERIES, "difference", "numbers", "outcomes")
    }


_EMPTY: Fields = {
    **{name: [] for name in ("counts", *SERIES)},
    "device_bound": 0.0,
    "difference": None,
}
ROUND = _second(RESULT, numbers=NUMBERS)
RESULTS: dict[str, Fields] = {
    "one round": ROUND,
    "pooled": _second(
        RESULT, round=None, first=2, last=13, rounds=12, n=11_000, n_eff=900.5, numbers=NO_MEAN
    ),
    "once": _second(RESULT, reporting="once", protocol="OUE"),
    "hashed": _second(RESULT, reporting="hashed", protocol="LOLOHA"),
    "nested": _second(RESULT, reporting="nested", protocol="GRR", n_eff=950.0),
    "many devices, few that weigh": _second(RESULT, n=2000, n_eff=199.99, **_EMPTY),
    "nobody": _second(RESULT, n=0, devices=0, n_eff=0.0, rounds=0, outcomes={}, **_EMPTY),
    "from devices that were forgotten": _second(
        RESULT, outcomes={"accepted": 1000, "forgotten": 2}
    ),
    "from a device that floods": _second(
        RESULT, outcomes={"accepted": 1000, "forgotten": 1, "suspended": 90_000}
    ),
}


def good() -> Iterator[Good]:
    for name, number, attribute, body in REPORTS:
        fields: Fields = {
            "version": 2,
            "manifest": name,
            "round": number,
            "attribute": attribute,
            "body": body,
        }
        yield "report", fields, wire.report(DIGESTS[name], number, attribute, body, 2)
    longest = b"\x20" + b"\xff" * 512
    fields = {"version": 2, "manifest": "plain", "round": 1, "attribute": 127, "body": longest}
    yield "report", fields, wire.report(DIGESTS["plain"], 1, 127, longest, 2)
    for protocols, steps in ((b"\x00", 2), (b"\x03\x07", 4), (bytes(128), 9)):
        fields = {"protocols": protocols, "steps": bytes(16 * steps)}
        yield "thresholds", fields, wire.thresholds(DIGEST, protocols, bytes(16 * steps))
    for fields in RESULTS.values():
        yield "result", {"v": 2, **fields}, wire.result(fields, 2)


def bad() -> Iterator[Bad]:
    too_long = wire.report(DIGESTS["plain"], 1, 0, bytes(514), 2)
    yield "report", "version 2, body of 514 bytes", too_long, "malformed"
    for why, items in _THRESHOLDS.items():
        yield "thresholds", why, wire.packed(items), "malformed"
    for why, change in _RESULT_CHANGES.items():
        yield "result", f"version 2, {why}", wire.result({**ROUND, **change}, 2), "malformed"
    for why, change in _NUMBERS_CHANGES.items():
        fields = {**ROUND, "numbers": {**NUMBERS, **change}}
        yield "result", f"version 2, numbers: {why}", wire.result(fields, 2), "malformed"
    yield "result", "version 2 as version 1", wire.result(ROUND, 1), "malformed"
    without = {name: value for name, value in ROUND.items() if name != "numbers"}
    yield "result", "version 2, a field missing", wire.result(without, 2), "malformed"


_D8 = bytes(8)
_THRESHOLDS: dict[str, list[Any]] = {
    "version 2": [2, _D8, b"\x00", bytes(16)],
    "three fields": [1, _D8, b"\x00"],
    "no protocol": [1, _D8, b"", bytes(16)],
    "129 protocols": [1, _D8, bytes(129), bytes(16)],
    "protocols as text": [1, _D8, "L-GRR", bytes(16)],
    "no steps": [1, _D8, b"\x00", b""],
    "half a step": [1, _D8, b"\x00", bytes(24)],
    "steps in an array": [1, _D8, b"\x00", [1, 2]],
    "digest8 of 7 bytes": [1, bytes(7), b"\x00", bytes(16)],
}
_WITHHELD = {**_EMPTY, "numbers": None}
_RESULT_CHANGES: dict[str, Fields] = {
    "a later outcome that did not occur": {"outcomes": {"forgotten": 0}},
    "an unknown way": {"reporting": "daily"},
    "a protocol of another way": {"protocol": "GRR"},
    "no protocol": {"protocol": None},
    "first after the round": {"first": 8},
    "last before the round": {"last": 6},
    "first 65536": {"first": 65_536},
    "last nil": {"last": None},
    "pooled, last before first": {"round": None, "first": 8, "last": 7},
    "more rounds than there are": {"rounds": 2},
    "rounds 0 though there are reports": {"rounds": 0},
    "nobody, and a round": {"n": 0, "devices": 0, "n_eff": 0.0, **_WITHHELD},
    "no devices though there are reports": {"devices": 0},
    "more devices than reports": {"devices": 1001},
    "n_eff an integer": {"n_eff": 1000},
    "n_eff nil": {"n_eff": None},
    "n_eff NaN": {"n_eff": float("nan")},
    "n_eff infinite": {"n_eff": float("inf")},
    "n_eff negative": {"n_eff": -1.0},
    "n_eff 0 though there are reports": {"n_eff": 0.0, **_WITHHELD},
    "a histogram of too few": {"n_eff": 199.5},
    "withheld though there are enough": _WITHHELD,
    "a difference of a withheld one": {
        "n_eff": 199.5,
        **_WITHHELD,
        "difference": {"pair": 0.5, "tallest": 0.5},
    },
    "numbers of a withheld one": {"n_eff": 199.5, **_WITHHELD, "numbers": NUMBERS},
    "no difference": {"difference": None},
    "a difference in an array": {"difference": [0.125, 0.1875]},
    "a difference in another order": {"difference": {"tallest": 0.1875, "pair": 0.125}},
    "an infinite difference": {"difference": {"pair": float("inf"), "tallest": 0.1875}},
    "half a difference": {"difference": {"pair": 0.125}},
    "device_bound 0": {"device_bound": 0.0},
    "counts of another length": {"counts": [1, 2]},
    "numbers an array": {"numbers": [0.5]},
    "numbers empty": {"numbers": {}},
}
_ROWS = NUMBERS["quantiles"]
_NUMBERS_CHANGES: dict[str, Fields] = {
    "half a mean": {"mean_low": None},
    "a mean that is infinite": {"mean": float("inf")},
    "a mean that is an integer": {"mean": 11},
    "one share too many": {"cdf": [0.1, 0.2, 0.3]},
    "limits of another length": {"cdf_low": []},
    "shares NaN": {"cdf": [float("nan")]},
    "four quantiles": {"quantiles": _ROWS[:4]},
    "quantiles in another order": {"quantiles": _ROWS[::-1]},
    "a quantile of another share": {"quantiles": [[0.2, 1.0, 0.0, 2.0], *_ROWS[1:]]},
    "a quantile of three": {"quantiles": [[0.1, 1.0, 0.0], *_ROWS[1:]]},
    "an infinite end": {"quantiles": [[0.1, 1.0, float("-inf"), 2.0], *_ROWS[1:]]},
    "a quantile in a map": {"quantiles": [{"tau": 0.1}, *_ROWS[1:]]},
}


def unfit() -> Iterator[tuple[str, str, bytes, str]]:
    """Well-formed reports that a manifest does not allow: manifest, why, bytes, outcome."""
    for name, number, attribute, body in REPORTS:
        digest = DIGESTS[name]

        def made(
            body: bytes, digest: bytes = digest, place: tuple[int, int] = (number, attribute)
        ) -> bytes:
            return wire.report(digest, *place, body, 2)

        old = wire.report(digest, number, attribute, body, 1)
        yield name, f"attribute {attribute} as version 1", old, "malformed"
        yield name, f"attribute {attribute}, a byte more", made(body + b"\x00"), "bad_length"
        yield name, f"attribute {attribute}, a byte less", made(body[:-1]), "bad_length"
    for name, why, attribute, body, outcome in _FAULTS:
        yield name, why, wire.report(DIGESTS[name], 0, attribute, body, 2), outcome
    other = wire.report(bytes(8), 0, 9, b"", 1)
    yield "plain", "the version is looked at first", other, "malformed"
    yield "plain", "then the digest", wire.report(bytes(8), 0, 9, b"", 2), "wrong_manifest"
    yield (
        "plain",
        "then the attribute",
        wire.report(DIGESTS["plain"], 99, 1, b"", 2),
        "bad_attribute",
    )
    yield "plain", "then the round", wire.report(DIGESTS["plain"], 30, 0, b"\x02", 2), "early"


_FAULTS: tuple[tuple[str, str, int, bytes, str], ...] = (
    ("plain", "value beyond the last", 0, b"\x03", "bad_value"),
    ("tour", "a byte behind the answer is set", 0, b"\x00\x01", "bad_padding"),
    ("tour", "a bit behind the last value is set", 3, b"\x00\x08", "bad_padding"),
    ("tour", "a bit behind three values is set", 2, b"\x10\x00", "bad_padding"),
    ("tour", "bad value before bad padding", 0, b"\x03\x01", "bad_value"),
    ("trend", "value beyond the last", 0, b"\x0d", "bad_value"),
    ("cells", "cell 2", 0, b"\x02", "bad_value"),
    ("cells", "cell 255", 1, b"\xff", "bad_value"),
    ("steps", "level 0", 0, b"\x00\x01\x00\x00\x00", "bad_value"),
    ("steps", "level 5 of 4", 1, b"\x05\x00\x00\x00\x00", "bad_value"),
    ("steps", "level 255", 2, b"\xff\x00\x00\x00\x00", "bad_value"),
    ("steps", "value beyond the last", 0, b"\x01\x03\x00\x00\x00", "bad_value"),
    ("steps", "a bit behind the last value is set", 1, b"\x01\x00\x00\x00\x01", "bad_padding"),
    ("steps", "a byte behind the answer is set", 2, b"\x01\x00\x80\x00\x01", "bad_padding"),
)

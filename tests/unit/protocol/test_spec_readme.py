"""`protocol_spec/README.md` says what the code does: its tables, formulas and examples are checked.

Where a table repeats `asyncapi.yaml`, it is compared with that, which `test_asyncapi` holds equal
to the code. Formulas are read from the text and calculated.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import protocol_spec
from protocol_spec import (
    Calibration,
    InfeasibleBudget,
    Manifest,
    ManifestError,
    Outcome,
    Presence,
    Randomiser,
    ReceiptPage,
    Rejected,
    Report,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Result,
    State,
    as_drawn,
    calibrate,
    choose,
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_result,
    decode_state,
    digest8,
    largest_eps_1,
    manifest_reader,
    receipt_page,
    receipt_tag,
    report_fault,
    thresholds,
    wire,
)
from protocol_spec.canonical import unpack_manifest
from protocol_spec.estimation import critical_value, estimate
from protocol_spec.manifest import MAX_MANIFEST_BYTES
from protocol_spec.outcomes import HELP
from protocol_spec.result import MAX_JSON_BYTES, MAX_RESULT_BYTES

FOLDER = Path(protocol_spec.__file__).parent
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
ASYNCAPI: Mapping[str, Any] = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))
DEVICE = "k7f3-0b2q"


# --- reading the text ---------------------------------------------------------------------------


def _rows(*header: str) -> list[list[str]]:
    """The cells of the one table with that header."""
    [table] = re.findall(
        rf"^\| {re.escape(' | '.join(header))} \|\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.M
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def _fence(info: str) -> str:
    [inside] = re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", TEXT, re.M | re.S)
    return str(inside)


def _hex(name: str) -> bytes:
    """An example: hex pairs at the start of each line, a remark after three blanks."""
    lines = _fence(f"hex {name}").splitlines()
    return b"".join(bytes.fromhex(line.split("   ")[0]) for line in lines)


def _bare(cell: str) -> str:
    return cell.strip("`")


MANIFEST = Manifest.from_toml(_fence("toml"))
D8 = digest8(MANIFEST)


# --- requirements -------------------------------------------------------------------------------


def _requirements() -> list[tuple[int, str]]:
    found = re.findall(r"^- \*\*M(\d+)\*\* (.*(?:\n  .*)*)", TEXT, re.M)
    return [(int(number), text) for number, text in found]


def test_requirements_are_numbered_without_gap_or_repetition() -> None:
    numbers = [number for number, _ in _requirements()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert {int(number) for number in re.findall(r"\bM(\d+)\b", TEXT)} == set(numbers)


def test_every_requirement_says_must_and_nothing_else_does() -> None:
    demands = [text for _, text in _requirements()]
    assert all("MUST" in text for text in demands)
    said_elsewhere = TEXT.count("MUST") - sum(text.count("MUST") for text in demands)
    assert said_elsewhere == TEXT.count("MUST, SHOULD and MAY are those of RFC 2119") == 1


def test_sections_are_numbered_and_references_lead_to_one() -> None:
    sections = re.findall(r"^## (\d+)\. ", TEXT, re.M)
    assert sections == [str(number) for number in range(1, len(sections) + 1)]
    assert set(re.findall(r"section (\d+)", TEXT)) <= set(sections)


def test_links_lead_to_files() -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    assert set(targets) == {"asyncapi.yaml", "vectors"}
    assert all((FOLDER / target).exists() for target in targets)


def test_every_file_of_vectors_is_described() -> None:
    described = {_bare(name) for name, _ in _rows("file", "what an implementation checks with it")}
    assert described == {path.name for path in (FOLDER / "vectors").glob("*.json")}


# --- tables -------------------------------------------------------------------------------------


def test_outcomes_are_those_of_the_code() -> None:
    assert _rows("outcome", "meaning") == [[f"`{name}`", HELP[name]] for name in Outcome]


def test_limits_are_those_of_the_code() -> None:
    assert {name: int(number) for name, number in _rows("limit", "number")} == {
        "manifest, bytes": MAX_MANIFEST_BYTES,
        "report, bytes": wire.MAX_REPORT_BYTES,
        "state, request, response, bytes": wire.MAX_CONTROL_BYTES,
        "receipt page, bytes": wire.MAX_RECEIPT_BYTES,
        "result, bytes": MAX_RESULT_BYTES,
        "result in JSON, bytes": MAX_JSON_BYTES,
        "body of a report, bytes": wire.MAX_BODY_BYTES,
        "attributes of a campaign": manifest_reader.MAX_ATTRIBUTES,
        "values of an attribute": manifest_reader.MAX_VALUES,
        "rounds of a campaign": manifest_reader.MAX_ROUNDS,
        "receipt pages of a campaign": _schema("manifest", "receipt_pages")["maximum"],
        "digest in a message, bytes": wire.DIGEST_BYTES,
        "receipt tag, bytes": wire.TAG_BYTES,
        "nonce of a request, bytes": wire.NONCE_BYTES,
    }


def test_topics_are_those_of_asyncapi() -> None:
    said = set()
    for topic, route, qos, retain, _ in _rows("topic", "from, to", "QoS", "retain", "payload"):
        action = "receive" if route == "device, collector" else "send"
        said.add((_bare(topic), action, int(qos), {"yes": True, "no": False}[retain]))
    described = set()
    for operation in ASYNCAPI["operations"].values():
        channel = _resolved(operation["channel"])
        flags = _resolved(operation["bindings"])["mqtt"]
        address = channel["address"].replace("{namespace}", "{ns}")
        described.add((address, operation["action"], flags["qos"], flags["retain"]))
    assert said == described


def test_subscriptions_are_those_of_asyncapi() -> None:
    described = {
        channel["x-subscription"].replace("{namespace}", "{ns}")
        for channel in ASYNCAPI["channels"].values()
        if "x-subscription" in channel
    }
    assert {_bare(name) for name, _ in _rows("subscription", "of")} == described


def test_a_results_fields_are_those_of_the_code_in_order() -> None:
    told = [_bare(field) for field, _, _ in _rows("field", "type", "meaning")]
    assert told == _schema("result")["required"]
    assert [_bare(key) for key, _, _ in _rows("key", "type", "meaning")] == _schema("resultJson")[
        "required"
    ]


@pytest.mark.parametrize(
    ("field", "members"),
    [("presence", Presence), ("kind", RequestKind), ("status", ResponseStatus)],
)
def test_numbered_names_are_those_of_the_code(field: str, members: type[IntEnum]) -> None:
    [told] = re.findall(rf"\b{field} (\d [a-z]+(?:, \d [a-z]+)*)", TEXT)
    assert told == ", ".join(f"{int(member)} {member.name.lower()}" for member in members)


@pytest.mark.parametrize("name", ["report", "state", "receipt", "request", "response"])
def test_arrays_are_those_of_asyncapi(name: str) -> None:
    schema = _schema(name)
    assert f"`{schema['description']}`" in TEXT
    assert len(schema["description"].split(", ")) == len(schema["items"])


# --- the manifest's fields ----------------------------------------------------------------------

DOCUMENT: dict[str, Any] = unpack_manifest(MANIFEST.to_bytes())
FIELDS = _rows("field", "type", "limits", "default", "meaning")


def _resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        found: Any = ASYNCAPI
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        node = found
    return node


def _schema(*path: str) -> Mapping[str, Any]:
    node = _resolved(ASYNCAPI["components"]["schemas"][path[0]])
    for step in path[1:]:
        node = _resolved(node["properties"][step])
    return node


def _field_schema(field: str) -> Mapping[str, Any]:
    if field.startswith("attributes[]."):
        name = field.removeprefix("attributes[].")
        return _schema("bins" if name in ("edges", "unit") else "namedValues", name)
    return _schema("manifest", *field.split("."))


def _documented() -> Iterator[str]:
    """Every field of a manifest in the order of the wire, as the table writes them."""
    for name, value in DOCUMENT.items():
        if name == "rounds":
            yield from (f"rounds.{inner}" for inner in value)
        elif name == "attributes":
            named, bins = ([f"attributes[].{inner}" for inner in each] for each in value)
            yield from (*named[:3], *bins[2:])
        else:
            yield name


def test_a_manifests_fields_are_those_of_the_code_in_order() -> None:
    assert [_bare(row[0]) for row in FIELDS] == list(_documented())


@pytest.mark.parametrize(("field", "limits"), [(_bare(row[0]), row[2]) for row in FIELDS])
def test_a_fields_limits_are_those_of_asyncapi(field: str, limits: str) -> None:
    schema = _field_schema(field)
    if "enum" in schema:
        assert limits == ", ".join(f"`{name}`" for name in schema["enum"])
        return
    if "const" in schema:
        assert limits == str(schema["const"])
        return
    spans = [
        (float(low), float(high)) for low, high in re.findall(r"([\d.e-]+) to ([\d.e-]+)", limits)
    ]
    assert spans == list(_spans(schema))


def _spans(schema: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    if "pattern" in schema:
        longest = re.findall(r"\{0,(\d+)\}", schema["pattern"])[0]
        ends = 2 if ")?$" in schema["pattern"] else 1
        yield 1.0, float(int(longest) + ends)
        return
    for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")):
        if low in schema:
            yield schema[low], schema[high]
    if "minLength" in schema.get("items", {}):
        yield from _spans(schema["items"])


def _without(field: str) -> tuple[dict[str, Any], Callable[[Manifest], Any], str]:
    """The example without a field, how to find it again, and what its refusal is called."""
    changed = copy.deepcopy(DOCUMENT)
    table, name = field.split(".") if "." in field else ("", field)
    if table == "attributes[]":
        place = 1 if name == "unit" else 0
        del changed["attributes"][place][name]
        held = operator.attrgetter("method" if name == "calibration" else name)
        return changed, lambda read: held(read.attributes[place]), f"attributes[{place}].{name}"
    del (changed[table] if table else changed)[name]
    return changed, operator.attrgetter(field), field


def _default(cell: str) -> Any:
    if cell in ("`rounds.first`", "`rounds.period`"):
        return getattr(MANIFEST.rounds, cell.strip("`").removeprefix("rounds."))
    if cell == "end of the last round's grace":
        return MANIFEST.rounds.end
    if cell == "empty":
        return ""
    return int(cell) if cell.isdecimal() else _bare(cell)


@pytest.mark.parametrize(
    ("field", "default"),
    [(_bare(row[0]), row[3]) for row in FIELDS if _bare(row[0]) != "attributes[].edges"],
)
def test_a_fields_default_is_that_of_the_code(field: str, default: str) -> None:
    changed, find, name = _without(field)
    if default:
        assert find(Manifest(**manifest_reader.read_manifest(changed))) == _default(default)
        return
    with pytest.raises(ManifestError) as refusal:
        manifest_reader.read_manifest(changed)
    assert name in {problem.field for problem in refusal.value.problems}


# --- examples -----------------------------------------------------------------------------------

NONCE = bytes(range(8))
PAGE, TAG = receipt_page(MANIFEST, DEVICE), receipt_tag(MANIFEST, 3, DEVICE)
EXAMPLES: dict[str, tuple[Any, Callable[[bytes], Any]]] = {
    "report": (Report(D8, 300, 1, b"\xa0\x80"), decode_report),
    "state": (State(D8, Presence.ONLINE, 2), decode_state),
    "receipt": (
        ReceiptPage(D8, 3, PAGE, frozenset({TAG, bytes.fromhex("b32b8c0b")})),
        decode_receipts,
    ),
    "request": (Request(D8, RequestKind.FORGET, NONCE), decode_request),
    "response": (
        Response(D8, RequestKind.FORGET, NONCE, ResponseStatus.DONE, 1),
        decode_response,
    ),
    "result": (
        Result(
            digest=MANIFEST.digest,
            attribute="colour",
            round=3,
            rounds=1,
            protocol="L-GRR",
            n=1,
            devices=1,
            min_reports=2,
            confidence=0.95,
            device_bound=0.0,
            counts=(),
            **dict.fromkeys(protocol_spec.result.SERIES, ()),
            outcomes=dict.fromkeys(Outcome, 0) | {Outcome.ACCEPTED: 3, Outcome.DUPLICATE: 1},
        ),
        decode_result,
    ),
}


def test_the_manifests_bytes_digest_and_name_are_as_shown() -> None:
    shown = _hex("manifest")
    assert shown == MANIFEST.to_bytes()
    assert Manifest.from_bytes(shown) == MANIFEST
    assert _rows("of the example", "is") == [
        ["digest", f"`{hashlib.sha256(shown).hexdigest()}`"],
        ["campaign", f"`{MANIFEST.campaign}`"],
    ]


def test_every_message_has_an_example() -> None:
    shown = re.findall(r"^```hex (\w+)$", TEXT, re.M)
    assert sorted(shown) == sorted(["manifest", *EXAMPLES])
    assert sorted([*shown, "resultJson"]) == sorted(ASYNCAPI["components"]["messages"])
    assert json.loads(_fence("json")).keys() == set(_schema("resultJson")["required"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_what_it_says(name: str) -> None:
    message, decode = EXAMPLES[name]
    assert message.encode() == _hex(name)
    assert not isinstance(decode(_hex(name)), Rejected)
    assert decode(_hex(name)) == message


def test_the_report_shown_fits_the_manifest_shown() -> None:
    report = decode_report(_hex("report"))
    assert isinstance(report, Report)
    assert report_fault(report, MANIFEST) is None
    assert MANIFEST.body_formats[report.attribute].supported(report.body) == [0, 2, 8]
    assert "body: values 0, 2 and 8 of 9" in TEXT


def test_page_and_tag_are_as_shown() -> None:
    assert f"the device `{DEVICE}`" in TEXT
    assert f"in round 3: page {PAGE}, tag `{TAG.hex()}`" in TEXT


def test_thresholds_are_as_shown() -> None:
    expected = [
        [attribute.name, noise.protocol, *map(str, thresholds(noise))]
        for attribute, noise in zip(MANIFEST.attributes, MANIFEST.calibrations)
    ]
    assert _rows("attribute", "protocol", "p1", "q1", "p2", "q2") == expected


def test_the_draw_shown_gives_the_memo_shown() -> None:
    [(drawn, memo)] = re.findall(
        r"`([0-9a-f]+)` makes, of the value 1 of colour, the memo `(\w+)`", TEXT
    )
    left = bytearray.fromhex(drawn)

    def entropy(size: int) -> bytes:
        taken = bytes(left[:size])
        del left[:size]
        return taken

    assert Randomiser(MANIFEST.calibrations[0], entropy).memoize(1).hex() == memo
    assert not left


def test_the_probability_of_a_false_receipt_is_as_said() -> None:
    assert f"{1000 / 2 ** (8 * wire.TAG_BYTES):.1e}".replace("e-0", "e-") in TEXT


# --- formulas -----------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": lambda value: value.sqrt(),
    "ln": lambda value: value.ln(),
    "exp": lambda value: value.exp(),
    "max": max,
}
Names = dict[str, Decimal]


def _value(node: ast.expr, names: Names) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return Decimal(number)
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_value(argument, names) for argument in arguments))
    raise AssertionError(ast.dump(node))


def _calculated(lines: Sequence[str], names: Names) -> Names:
    """The names given and those that formulas such as "ps = p1*p2" add to them."""
    known = dict(names)
    for line in lines:
        target, formula = line.split(" = ")
        tree = ast.parse(formula.strip().replace("^", "**"), mode="eval").body
        known[target.strip()] = _value(tree, known)
    return known


def _chances(protocol: str, k: int, eps_inf: float, eps_1: float, method: str) -> Names:
    """p1, q1, p2, q2 and all else of section 8, as its table says."""
    wanted = f"{protocol}, `{method}`" if (protocol, method) == ("L-GRR", "paper") else protocol
    [row] = [row for row in _rows("protocol", "RR1", "RR2", "largest eps_1") if row[0] == wanted]
    [letters] = re.findall(r"Write (`a = .*`)\.", TEXT)
    given = {"k": Decimal(k), "eps_inf": Decimal(eps_inf), "eps_1": Decimal(eps_1)}
    names = _calculated(re.findall(r"`([^`]+)`", letters), given)
    steps = [step for cell in row[1:3] for step in _bare(cell).split("; ")]
    names = _calculated(steps, names)
    if row[3]:
        names = _calculated([f"limit = {_bare(row[3])}"], names)
    return _calculated(_fence("formulas support").splitlines(), names)


BUDGETS = [(2, 1.0, 0.3), (3, 2.0, 0.6), (7, 0.1, 0.05), (41, 4.0, 2.4), (4096, 20.0, 6.0)]
MECHANISMS = [(p, "exact") for p in protocol_spec.LONGITUDINAL] + [("L-GRR", "paper")]


def _calibrated(protocol: str, k: int, eps_inf: float, eps_1: float, method: str) -> Calibration:
    assert method in ("exact", "paper")
    return calibrate(
        protocol,
        k=k,
        eps_inf=eps_inf,
        eps_1=eps_1,
        method="paper" if method == "paper" else "exact",
    )


@pytest.mark.parametrize(("k", "eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_formulas_of_calibration_are_those_of_the_code(
    protocol: str, method: str, k: int, eps_inf: float, eps_1: float
) -> None:
    noise = _calibrated(protocol, k, eps_inf, eps_1, method)
    with localcontext(prec=80):
        said = _chances(protocol, k, eps_inf, eps_1, method)
        for name, exact in zip(("p1", "q1", "p2", "q2"), noise.exact):
            assert abs(said[name] - exact) < Decimal("1e-60"), name
    assert float(said["ps"]) == noise.ps
    assert float(said["qs"]) == noise.qs
    assert float(said["V"]) == noise.variance(1)


@pytest.mark.parametrize("protocol", ["L-OUE", "L-SOUE"])
@pytest.mark.parametrize("eps_inf", [0.1, 1.0, 4.0, 20.0])
def test_the_formulas_of_feasibility_are_those_of_the_code(protocol: str, eps_inf: float) -> None:
    with localcontext(prec=80):
        limit = float(_chances(protocol, 5, eps_inf, eps_inf / 8, "exact")["limit"])
    assert limit == largest_eps_1(protocol, eps_inf=eps_inf)
    calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=limit)
    with pytest.raises(InfeasibleBudget):
        calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=math.nextafter(limit, math.inf))


@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_thresholds_are_those_of_the_next_float_below(protocol: str, method: str) -> None:
    noise = _calibrated(protocol, 7, 2.0, 0.6, method)
    below = [math.nextafter(epsilon, 0.0) for epsilon in (2.0, 0.6)]
    with localcontext(prec=80):
        said = _chances(protocol, 7, below[0], below[1], method)
        scaled = {name: said[name] * 2**64 for name in ("p1", "q1", "p2", "q2")}
    expected = [
        math.floor(chance) if name.startswith("p") else math.ceil(chance)
        for name, chance in scaled.items()
    ]
    assert list(thresholds(noise)) == expected


@pytest.mark.parametrize(("k", "eps_inf", "eps_1"), [*BUDGETS, (8, 2.0, math.log(2))])
@pytest.mark.parametrize("method", ["exact", "paper"])
def test_the_choice_compares_variances(method: str, k: int, eps_inf: float, eps_1: float) -> None:
    with localcontext(prec=80):
        grr, osue = (
            _chances(protocol, k, eps_inf, eps_1, method)["V"] for protocol in ("L-GRR", "L-OSUE")
        )
    chosen = _calibrated("ALLOMFREE", k, eps_inf, eps_1, method)
    assert chosen.protocol == ("L-GRR" if grr <= osue else "L-OSUE")


def test_the_tie_that_is_mentioned_is_one() -> None:
    """Rounded, both variances are equal; in full precision 3c + 2 is below 8."""
    choice = choose(k=8, eps_inf=2.0, eps_1=math.log(2))
    assert choice.grr.variance(1) == choice.osue.variance(1)
    assert choice.chosen.protocol == "L-OSUE"
    with localcontext(prec=80):
        assert 3 * Decimal(math.log(2)).exp() + 2 < 8
    assert "k = 8 and eps_1 = ln 2" in TEXT


@pytest.mark.parametrize("reports", [1, 2, 10])
@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_formulas_of_loss_are_those_of_the_code(
    protocol: str, method: str, reports: int
) -> None:
    noise = _calibrated(protocol, 7, 2.0, 0.6, method)
    with localcontext(prec=80):
        names = {**_chances(protocol, 7, 2.0, 0.6, method), "t": Decimal(reports)}
        lost = _calculated(_fence("formulas loss").splitlines(), names)
    assert float(lost["unary" if noise.unary else "grr"]) == noise.epsilon_after(reports)


@pytest.mark.parametrize("for_all", [False, True])
@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_the_formulas_of_a_result_are_those_of_the_code(protocol: str, for_all: bool) -> None:
    noise = as_drawn(_calibrated(protocol, 4, 2.0, 0.6, "exact"))
    n = 100_000
    counts = [round(n * (noise.qs + f * noise.gap)) for f in (0.5, 0.3, 0.2, 0.0)]
    estimated = estimate(counts, n, noise)
    ends = estimated.interval(0.95, simultaneous=for_all)
    z = critical_value(0.95 ** (1 / 4) if for_all else 0.95)
    for i, count in enumerate(counts):
        said = _result(noise, n, count)
        for name, found in {
            "raw": estimated.raw[i],
            "device_bound": 1 / (n * noise.gap),
            "V0": estimated.v0,
            "V1": estimated.v1,
            "privacy_error": estimated.privacy_error[i],
            "sampling_error": estimated.sampling_error[i],
        }.items():
            assert float(said[name]) == pytest.approx(found, rel=1e-9, abs=1e-12), name
        low, high = (Decimal(float(end[i])) for end in ends)
        assert _surprised(said, low, z) == (0 if low else -1)
        assert _surprised(said, high, z) == 0
        assert _surprised(said, low - Decimal("1e-6"), z) == (1 if low else -1)
        assert _surprised(said, high + Decimal("1e-6"), z) == 1


def _result(noise: Calibration, n: int, count: int) -> Names:
    """What section 11 makes of a count."""
    lines = _fence("formulas result").splitlines()
    exact = dict(zip(("p1", "q1", "p2", "q2"), noise.exact))
    names = _calculated(_fence("formulas support").splitlines()[:2], exact)
    names |= {"n": Decimal(n), "count": Decimal(count)}
    raw = _calculated(lines[:1], names)["raw"]
    names["g"] = min(max(raw, Decimal(0)), Decimal(1))
    return _calculated(lines, names)


def _surprised(said: Names, f: Decimal, z: float) -> int:
    """Whether g is further from f than chance allows: 1, or -1 if it is not, 0 just between."""
    names = {**said, "f": f, "z": Decimal(z)}
    reached = _calculated(_fence("formulas interval").splitlines(), names)
    excess = abs(said["g"] - f) - reached["up" if f < said["g"] else "down"]
    return 0 if abs(excess) < Decimal("1e-12") else 1 if excess > 0 else -1


def test_bins_are_as_said() -> None:
    """M9: a bin includes its lower edge, the last one a finite last edge as well."""
    heat = MANIFEST.attributes[1]
    assert heat.edges is not None
    for i, (low, high) in enumerate(pairwise(heat.edges)):
        assert heat.index_of(low) == i
        assert heat.index_of(math.nextafter(high, -math.inf)) == i

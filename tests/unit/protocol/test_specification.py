"""The specification says what the code does: defaults, examples, tables, requirements."""

from __future__ import annotations

import copy
import hashlib
import json
import operator
import re
import shutil
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

import spec_tables
from edge_client.link import WINDOW
from protocol_spec import (
    NOT_KNOWN,
    Manifest,
    ManifestError,
    Presence,
    Randomiser,
    Rejected,
    Report,
    RequestKind,
    ResponseStatus,
    Result,
    as_drawn,
    decode_report,
    digest8,
    limits,
    manifest,
    receipt_page,
    receipt_tag,
    report_fault,
)
from protocol_spec.estimation import effective_devices, estimate_pooled, smallest_difference
from protocol_spec.fields import Kind, Wrong, text
from protocol_spec.manifest import unpack_manifest
from tests.support.protocol.asyncapi import COMPONENTS, SCHEMAS, fits, nodes, resolved
from tests.support.protocol.helpers import DECODERS as READERS
from tests.support.protocol.specification import (
    DEVICE,
    FOLDER,
    MANIFEST,
    TEXT,
    bare,
    fence,
    hex_of,
    rows,
)

DOCUMENT: dict[str, Any] = unpack_manifest(MANIFEST.to_bytes())
DOCUMENT["groups"] = {"label": "region", "values": ["north"]}
FIELDS = rows("field", "type", "limits", "default", "meaning")


def test_a_manifests_fields_are_listed_in_the_order_of_the_wire() -> None:
    named, bins = DOCUMENT["attributes"]
    written = [name for name in DOCUMENT if name not in ("rounds", "attributes", "groups")]
    written += [f"rounds.{inner}" for inner in DOCUMENT["rounds"]]
    written += [f"attributes[].{inner}" for inner in ("cross", *list(named)[:3], *list(bins)[2:])]
    written += ["attributes[].levels", "groups.label", "groups.values"]
    assert [bare(row[0]) for row in FIELDS] == written


def _without(field: str) -> tuple[dict[str, Any], Callable[[Manifest], Any], str]:
    """The example without a field, how to find it again, and what its refusal is called."""
    changed = copy.deepcopy(DOCUMENT)
    table, name = field.split(".") if "." in field else ("", field)
    if table == "attributes[]":
        place = 1 if name in ("unit", "low", "high") else 0
        del changed["attributes"][place][name]
        held = operator.attrgetter("method" if name == "calibration" else name)
        return changed, lambda read: held(read.attributes[place]), f"attributes[{place}].{name}"
    del (changed[table] if table else changed)[name]
    return changed, operator.attrgetter(field), field


WORDS: dict[str, Any] = {
    "`rounds.first`": MANIFEST.rounds.first,
    "`rounds.period`": MANIFEST.rounds.period,
    "end of the last round's grace": MANIFEST.rounds.end,
    "16; M66": 16,
    "for `once` 1, else 0": 0,
    "nil": None,
    "true with `edges`, else false": False,
    "M75": "pooled",
}


def _default(cell: str, found: Any) -> Any:
    if cell == "empty":
        return type(found)()
    return WORDS[cell] if cell in WORDS else int(cell) if cell.isdecimal() else bare(cell)


# `levels` and `cross` are not in the example; those of M64 and M130 are checked by the vectors.
ELSEWHERE = {f"attributes[].{name}" for name in ("cross", "edges", "levels")}
GIVEN = [row for row in FIELDS if bare(row[0]) not in ELSEWHERE]


@pytest.mark.parametrize(("field", "default"), [(bare(row[0]), row[3]) for row in GIVEN])
def test_a_fields_default_is_that_of_the_code(field: str, default: str) -> None:
    changed, find, name = _without(field)
    if default and default != "for `once`: M62":
        found = find(Manifest(**manifest.read_manifest(changed)))
        assert found == _default(default, found)
        return
    with pytest.raises(ManifestError) as refusal:
        manifest.read_manifest(changed)
    assert name in {problem.field for problem in refusal.value.problems}


def test_defaults_that_follow_from_the_mechanism() -> None:
    """M62, M66, and `rounds.each`: the words of the table, once more with other fields."""
    once = copy.deepcopy(DOCUMENT) | {"reporting": "once", "devices": 501}
    for name in ("eps_1", "choose_for", "receipt_pages"):
        del once[name]
    once["attributes"][0]["protocol"] = "auto"
    del once["rounds"]["each"]
    read = Manifest(**manifest.read_manifest(once))
    assert read.choose_for == "round"
    assert (read.rounds.each, read.eps_1, read.receipt_pages) == (1, read.eps_inf, 3)
    twice = once | {"rounds": once["rounds"] | {"each": 3}}
    assert Manifest(**manifest.read_manifest(twice)).eps_1 == read.eps_inf / 3
    del once["attributes"][1]["changes"]
    assert Manifest(**manifest.read_manifest(once)).attributes[1].changes is True


@pytest.mark.parametrize(
    ("count", "period", "chosen"),
    [(30, 86_400, "round"), (31, 86_400, "pooled"), (1, 3e6, "pooled")],
)
def test_a_campaign_of_more_than_thirty_days_is_read_as_a_whole(
    count: int, period: float, chosen: str
) -> None:
    """M75: unless it says otherwise, or nothing is chosen."""
    changed = copy.deepcopy(DOCUMENT)
    del changed["choose_for"], changed["expires"]
    changed["rounds"] |= {"count": count, "period": int(period)}
    assert manifest.read_manifest(changed)["choose_for"] == chosen
    assert manifest.read_manifest(changed | {"choose_for": "round"})["choose_for"] == "round"
    for attribute in changed["attributes"]:
        attribute["protocol"] = "L-OSUE"
    assert manifest.read_manifest(changed)["choose_for"] == "round"


@pytest.mark.parametrize(("devices", "pages"), [(1, 1), (250, 1), (251, 2), (10**12, 65_536)])
def test_a_page_for_each_250_devices(devices: int, pages: int) -> None:
    changed = {name: value for name, value in DOCUMENT.items() if name != "receipt_pages"}
    read = manifest.read_manifest(changed | {"devices": devices})
    assert read["receipt_pages"] == pages


# --- The examples of the specification: bytes that decode, and numbers that follow from them.


DECODERS = {"receipt" if kind == "receipts" else kind: read for kind, read in READERS.items()}


def test_the_manifests_bytes_digest_and_name_are_as_shown() -> None:
    shown = hex_of("manifest")
    assert Manifest.from_bytes(shown) == MANIFEST
    assert rows("of the example", "is") == [
        ["digest", f"`{hashlib.sha256(shown).hexdigest()}`"],
        ["campaign", f"`{MANIFEST.campaign}`"],
    ]


def test_every_message_has_an_example() -> None:
    shown = re.findall(r"^```hex (\w+)$", TEXT, re.M)
    assert sorted(shown) == sorted(["manifest", *DECODERS])
    assert sorted([*shown, "resultJson"]) == sorted(COMPONENTS["messages"])
    assert list(json.loads(fence("json"))) == SCHEMAS["resultJson"]["required"]


@pytest.mark.parametrize("name", DECODERS)
def test_an_example_decodes_and_belongs_to_the_example_campaign(name: str) -> None:
    message = DECODERS[name](hex_of(name))
    assert not isinstance(message, Rejected)
    assert message.encode() == hex_of(name)
    if isinstance(message, Result):
        assert message.digest == MANIFEST.digest
    else:
        assert message.digest8 == digest8(MANIFEST)


def test_the_report_shown_fits_the_manifest_shown() -> None:
    report = decode_report(hex_of("report"))
    assert isinstance(report, Report)
    assert report_fault(report, MANIFEST) is None
    counted = MANIFEST.mechanisms[report.attribute].supported(report.body, DEVICE)
    assert MANIFEST.body_formats[report.attribute].supported(counted.body) == [3]
    assert "body: value 3 of 4, and a zero behind it" in TEXT


def test_page_and_tag_are_as_shown() -> None:
    page, tag = receipt_page(MANIFEST, DEVICE), receipt_tag(MANIFEST, 3, DEVICE)
    assert f"the device `{DEVICE}`" in TEXT
    assert f"in round 3: page {page}, tag `{tag.hex()}`" in TEXT


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


def test_the_result_in_json_is_what_the_counts_make() -> None:
    """Two rounds of three devices: 3, 2, 1 and 0 of the six reports support the four values."""
    shown = json.loads(fence("json"))
    assert fits(shown, SCHEMAS["resultJson"])
    counts = [row["count"] for row in shown["histogram"]]
    drawn = as_drawn(MANIFEST.calibrations[0])
    estimated = estimate_pooled(counts, [2], [3], drawn, weights="reports")
    low, high = estimated.interval(shown["confidence"])
    low_all, high_all = estimated.interval(shown["confidence"], simultaneous=True)
    series = {"raw": estimated.raw, "projected": estimated.projected, "low": low, "high": high}
    for name, found in {**series, "low_all": low_all, "high_all": high_all}.items():
        assert [row[name] for row in shown["histogram"]] == pytest.approx(found.tolist()), name
    assert [row["value"] for row in shown["histogram"]] == list(MANIFEST.attributes[0].values)
    assert shown["n_eff"] == effective_devices([2], [3]) == 3.0
    assert shown["difference"] == pytest.approx(smallest_difference(estimated)._asdict())
    assert (shown["campaign"], shown["digest"]) == (MANIFEST.campaign, MANIFEST.digest.hex())
    assert shown["device_bound"] == pytest.approx(2 / (6 * drawn.gap))


# --- The generated parts of the specification are what the code says: `spec_tables.py --check`.


def test_the_specification_says_what_the_code_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert spec_tables.main(["--check"]) == 0, capsys.readouterr().out


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in ("asyncapi.yaml", "README.md"):
        shutil.copy(FOLDER / name, tmp_path / name)
    return tmp_path / "README.md"


# A change of the code is a document that was right before it: each is one number or row of it.
CHANGES = [
    ("| report, bytes | 533 |", "| report, bytes | 532 |"),
    ("| int | 1 to 1000000000000 | 200 |", "| int | 1 to 1000000000000 | 100 |"),
    ("| `late` | for a round already sealed |\n", ""),
    ("cd 01 2c                        round 300", "cd 01 2d   round 301"),
]


@pytest.mark.parametrize(("right", "wrong"), CHANGES)
def test_a_difference_is_shown_and_rewritten(
    copied: Path, capsys: pytest.CaptureFixture[str], right: str, wrong: str
) -> None:
    text = copied.read_text(encoding="utf-8")
    assert right in text
    copied.write_text(text.replace(right, wrong, 1), encoding="utf-8")
    assert spec_tables.main(["--check"], copied.parent) == 1
    printed = capsys.readouterr()
    assert "README.md as the code says" in printed.out
    assert "run ./scripts/spec_tables.py" in printed.err
    assert spec_tables.main([], copied.parent) == 0
    assert copied.read_text(encoding="utf-8") == text


UNEXPLAINED = [
    (r"\| `retention` \|.*\n", "`retention` is not explained"),
    (r"<!-- (generated:|end of) limits -->\n", "do not agree"),
]


@pytest.mark.parametrize(("words", "complaint"), UNEXPLAINED)
def test_what_only_an_author_can_write_is_asked_for(
    copied: Path, capsys: pytest.CaptureFixture[str], words: str, complaint: str
) -> None:
    text = copied.read_text(encoding="utf-8")
    changed, times = re.subn(words, "", text)
    assert times
    copied.write_text(changed, encoding="utf-8")
    assert spec_tables.main(["--check"], copied.parent) == 1
    assert complaint in capsys.readouterr().err


def _requirements() -> list[tuple[int, str]]:
    found = re.findall(r"^- \*\*M(\d+)\*\* (.*(?:\n  .*)*)", TEXT, re.M)
    return [(int(number), text) for number, text in found]


def test_requirements_are_numbered_without_repetition() -> None:
    numbers = [number for number, _ in _requirements()]
    assert len(set(numbers)) == len(numbers)
    assert set(range(1, 59)) <= set(numbers)
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
    described = {bare(name) for name, _ in rows("file", "what an implementation checks with it")}
    assert described == {path.name for path in (FOLDER / "vectors").glob("*.json")}


@pytest.mark.parametrize(
    ("field", "members"),
    [("presence", Presence), ("kind", RequestKind), ("status", ResponseStatus)],
)
def test_numbered_names_are_those_of_the_code(field: str, members: type[IntEnum]) -> None:
    [told] = re.findall(rf"\b{field} (\d [a-z]+(?:, \d [a-z]+)*)", TEXT)
    assert told == ", ".join(f"{int(member)} {member.name.lower()}" for member in members)


ARRAYS = ["report", "signature", "thresholds", "state", "receipt", "request", "response"]


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_has_the_items_that_the_text_lists(name: str) -> None:
    schema = SCHEMAS[name]
    assert f"`{schema['description']}`" in TEXT
    assert len(schema["description"].split(", ")) == len(schema["items"])


@pytest.mark.parametrize("name", ARRAYS)
def test_an_arrays_ranges_are_in_the_text(name: str) -> None:
    """An item's smallest and largest number, or its length, stand behind the list of items."""
    start = TEXT.index(f"`{SCHEMAS[name]['description']}`")
    said = TEXT[start : TEXT.index("```", start)]
    for item in map(resolved, SCHEMAS[name]["items"][2:]):
        for part in nodes(item):
            if isinstance(part, dict) and "maximum" in resolved(part):
                bounds = resolved(part)
                known = f"{bounds['minimum']} to {bounds['maximum']}"
                assert known in said or known == "0 to 65535"  # of rounds: said with the report
    assert f"round 0 to {limits.MAX_ROUNDS - 1}" in TEXT


def _said(paragraph: str) -> set[int]:
    """The code points that a passage lists, as U+1234 or U+1234 to U+1238."""
    text = " ".join(paragraph.split())
    found: set[int] = set()
    for first, last in re.findall(r"U\+([0-9A-F]+)(?: to U\+([0-9A-F]+))?", text):
        found |= set(range(int(first, 16), int(last or first, 16) + 1))
    return found


def _refused(kind: Kind, value: str) -> bool:
    try:
        kind.parse(value)
    except Wrong:
        return True
    return False


def test_characters_that_no_text_may_hold_are_listed() -> None:
    start = TEXT.index("Text is counted in code points.")
    said = TEXT[start : TEXT.index("- **M59**")].replace("a space U+0020", "")
    hidden, kind = _said(said), text(0x11_0000)
    assert {"\u200e", "\u061c", "\u200b", "\ufeff", "\U000e0041"} <= {*map(chr, hidden)}
    every = set(range(0x11_0000)) - set(range(0xD800, 0xE000))  # UTF-8 has no surrogates
    shown = f"x{''.join(map(chr, sorted(every - hidden)))}"  # no blank at the ends
    assert kind.parse(shown) == shown
    assert [code for code in hidden if not _refused(kind, chr(code))] == []


def test_inline_numbers_are_those_of_the_code() -> None:
    for words in (
        f"a pseudonym of 1 to {limits.MAX_DEVICE_LENGTH} of",
        f"1 to {limits.MAX_NAMESPACE_LENGTH} of `a-z`",
        f"body 0 to {limits.MAX_BODY_BYTES} bytes",
        "64 hexadecimal digits",
        f"nonce {limits.NONCE_BYTES} bytes",
        f"the joined {limits.TAG_BYTES}-byte tags",
        f"first {limits.DIGEST_BYTES} bytes of the manifest's digest",
        f"MUST be the first {limits.TAG_BYTES} bytes of the SHA-256 of these",
        f"Counts are below 2^{(limits.MAX_COUNT + 1).bit_length() - 1}",
        str(limits.MAX_INSTANT),
        f"unless eps_1 is below {limits.MIN_PUBLISHED_EPS_1}",
        f"MUST NOT have more than {WINDOW} of its messages unacknowledged",
        f"the last value, `{NOT_KNOWN}`,",
    ):
        assert words in " ".join(TEXT.split()), words


def test_the_probability_of_a_false_receipt_is_as_said() -> None:
    assert f"{limits.PAGE_TAGS / 2 ** (8 * limits.TAG_BYTES):.1e}".replace("e-0", "e-") in TEXT

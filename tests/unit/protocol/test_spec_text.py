"""What the specification says in prose: numbered requirements, sections, links, inline numbers."""

from __future__ import annotations

import re
from enum import IntEnum

import pytest

from edge_client.link import WINDOW
from protocol_spec import NOT_KNOWN, Presence, RequestKind, ResponseStatus, limits
from protocol_spec.fields import Kind, Wrong, text
from tests.support.protocol.asyncapi import SCHEMAS, nodes, resolved
from tests.support.protocol.specification import FOLDER, TEXT, bare, rows


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
    assert f"{1000 / 2 ** (8 * limits.TAG_BYTES):.1e}".replace("e-0", "e-") in TEXT

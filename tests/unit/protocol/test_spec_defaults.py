"""The defaults that the specification gives a manifest's fields are those of the reader."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest

from protocol_spec import Manifest, ManifestError, manifest
from protocol_spec.manifest import unpack_manifest
from tests.support.protocol.specification import MANIFEST, bare, rows

DOCUMENT: dict[str, Any] = unpack_manifest(MANIFEST.to_bytes())
FIELDS = rows("field", "type", "limits", "default", "meaning")


def test_a_manifests_fields_are_listed_in_the_order_of_the_wire() -> None:
    named, bins = DOCUMENT["attributes"]
    written = [name for name in DOCUMENT if name not in ("rounds", "attributes")]
    written += [f"rounds.{inner}" for inner in DOCUMENT["rounds"]]
    written += [f"attributes[].{inner}" for inner in (*list(named)[:3], *list(bins)[2:])]
    assert [bare(row[0]) for row in FIELDS] == [*written, "attributes[].levels"]


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
}


def _default(cell: str, found: Any) -> Any:
    if cell == "empty":
        return type(found)()
    return WORDS[cell] if cell in WORDS else int(cell) if cell.isdecimal() else bare(cell)


# `levels` are not in the example; those of M64 are checked by the vectors.
GIVEN = [row for row in FIELDS if bare(row[0]) not in ("attributes[].edges", "attributes[].levels")]


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


def test_defaults_that_follow_from_the_way_of_reporting() -> None:
    """M62, M66, and `rounds.each`: the words of the table, once more with other fields."""
    once = copy.deepcopy(DOCUMENT) | {"reporting": "once", "devices": 2001}
    for name in ("eps_1", "receipt_pages"):
        del once[name]
    del once["rounds"]["each"]
    read = Manifest(**manifest.read_manifest(once))
    assert (read.rounds.each, read.eps_1, read.receipt_pages) == (1, read.eps_inf, 3)
    twice = once | {"rounds": once["rounds"] | {"each": 3}}
    assert Manifest(**manifest.read_manifest(twice)).eps_1 == read.eps_inf / 3
    del once["attributes"][1]["changes"]
    assert Manifest(**manifest.read_manifest(once)).attributes[1].changes is True


@pytest.mark.parametrize(("devices", "pages"), [(1, 1), (1000, 1), (1001, 2), (10**12, 65_536)])
def test_a_page_for_each_thousand_devices(devices: int, pages: int) -> None:
    changed = {name: value for name, value in DOCUMENT.items() if name != "receipt_pages"}
    read = manifest.read_manifest(changed | {"devices": devices})
    assert read["receipt_pages"] == pages

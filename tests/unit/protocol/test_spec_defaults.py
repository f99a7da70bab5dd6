"""The defaults that the specification gives a manifest's fields are those of the reader."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest

from protocol_spec import Manifest, ManifestError, manifest_reader
from protocol_spec.canonical import unpack_manifest
from tests.support.protocol.specification import MANIFEST, bare, rows

DOCUMENT: dict[str, Any] = unpack_manifest(MANIFEST.to_bytes())
FIELDS = rows("field", "type", "limits", "default", "meaning")


def test_a_manifests_fields_are_listed_in_the_order_of_the_wire() -> None:
    named, bins = DOCUMENT["attributes"]
    written = [name for name in DOCUMENT if name not in ("rounds", "attributes")]
    written += [f"rounds.{inner}" for inner in DOCUMENT["rounds"]]
    written += [f"attributes[].{inner}" for inner in (*list(named)[:3], *list(bins)[2:])]
    assert [bare(row[0]) for row in FIELDS] == written


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
    return int(cell) if cell.isdecimal() else bare(cell)


@pytest.mark.parametrize(
    ("field", "default"),
    [(bare(row[0]), row[3]) for row in FIELDS if bare(row[0]) != "attributes[].edges"],
)
def test_a_fields_default_is_that_of_the_code(field: str, default: str) -> None:
    changed, find, name = _without(field)
    if default:
        assert find(Manifest(**manifest_reader.read_manifest(changed))) == _default(default)
        return
    with pytest.raises(ManifestError) as refusal:
        manifest_reader.read_manifest(changed)
    assert name in {problem.field for problem in refusal.value.problems}

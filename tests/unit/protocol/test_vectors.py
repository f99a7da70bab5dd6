"""The published vectors are what the reference generates, and cover what they promise."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from check_vectors import main
from protocol_spec import (
    Topics,
    make_report,
    random_below,
    receipt_page,
    receipt_tag,
    report_fault,
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.harness import ROOT, SHARED
from tests.support.protocol import vectors
from tests.support.protocol.entropy import Tape
from tests.support.protocol.helpers import DECODERS, MANIFESTS
from tests.support.protocol.imports import imported
from tests.support.protocol.reference import LONGITUDINAL, calibrate, mp
from tests.support.protocol.reference_wire import packed


@pytest.mark.parametrize("name", sorted(vectors.DOCUMENTS))
def test_the_file_is_what_the_reference_generates(name: str) -> None:
    written = (vectors.FOLDER / name).read_text(encoding="utf-8")
    # As one bool: nobody could read the difference of two such files.
    same = written == vectors.text(vectors.DOCUMENTS[name]())
    assert same, f"{name} differs: run python -m tests.support.protocol.vectors --write"


def test_there_are_no_other_files() -> None:
    known = {*vectors.DOCUMENTS, *vectors.FROZEN}
    assert {path.name for path in vectors.FOLDER.iterdir()} == known


def test_every_kind_of_message_and_every_outcome_visible_in_the_bytes_has_examples() -> None:
    messages = vectors.load("messages.json")
    assert {entry["kind"] for entry in messages["good"]} == set(DECODERS)
    assert {entry["kind"] for entry in messages["bad"]} == set(DECODERS)
    outcomes = {entry["outcome"] for entry in (*messages["bad"], *messages["unfit"])}
    visible = {"malformed", "oversize", "wrong_manifest", "bad_attribute", "bad_length"}
    assert outcomes == visible | {"bad_padding", "bad_value", "bad_level", "early"}


# --- The reference itself stands on nothing but arithmetic: it agrees with msgpack and plain sums.


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary(max_size=70)
    | st.text(max_size=70)
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=30,
)


@given(PLAIN)
def test_the_writer_agrees_with_msgpack(value: Any) -> None:
    assert packed(value) == msgpack.packb(value)


@pytest.mark.parametrize("length", [31, 32, 255, 256, 65_535, 65_536])
def test_the_writer_agrees_at_every_change_of_header(length: int) -> None:
    for value in ("x" * length, b"x" * length, [1] * length, {str(i): i for i in range(length)}):
        assert packed(value) == msgpack.packb(value)


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_the_root_found_spends_exactly_both_budgets(protocol: str) -> None:
    mechanism = calibrate(protocol, 5, 2.0, 0.6)
    assert abs(mechanism.epsilon(1) - mp.mpf(0.6)) < mp.mpf(10) ** -70
    assert abs(mechanism.epsilon(2000) - 2) < mp.mpf(10) ** -20


INDEPENDENT = ["reference", "reference_wire", "vectors", "manifest_cases", "message_cases"]


@pytest.mark.parametrize("module", INDEPENDENT)
def test_the_reference_does_not_use_what_it_checks(module: str) -> None:
    names = imported(ROOT / "tests/support/protocol" / f"{module}.py")
    assert {name.split(".")[0] for name in names}.isdisjoint(
        {"protocol_spec", "edge_client", "collector"}
    )


# --- Vectors of what a device does: from random bytes to reports, and what it refuses to join.


DEVICES = vectors.load("draws.json")["devices"]


def named(entry: dict[str, Any]) -> str:
    return f"{entry['manifest']}-{entry['attribute']}-{entry['value']}"


@pytest.mark.parametrize("entry", DEVICES, ids=named)
def test_random_bytes_become_these_reports(entry: dict[str, Any]) -> None:
    manifest, tape = MANIFESTS[entry["manifest"]], Tape(bytes.fromhex(entry["entropy"]))
    index = random_below(len(manifest.attributes), tape)
    mechanism = manifest.mechanisms[index]
    draws = mechanism.randomiser(entry["device"], tape)
    rounds = draws.rounds(entry["open_round"])
    assert (index, rounds and list(rounds)) == (entry["attribute"], entry["rounds"])
    key = draws.key(entry["value"])
    memo = draws.memoize(key)
    assert (key, memo.hex()) == (entry["key"], entry["memo"])
    topic = Topics(manifest.campaign).report(entry["device"])
    for sent, (wanted, support) in enumerate(zip(entry["reports"], entry["supports"])):
        report = make_report(manifest, wanted["round"], index, draws.report(memo, sent))
        assert (topic, report.encode().hex()) == (wanted["topic"], wanted["hex"])
        assert report_fault(report, manifest) is None
        counted = mechanism.supported(report.body, entry["device"])
        assert [counted.channel, mechanism.counted.supported(counted.body)] == support
    assert tape.left == 0
    first = entry["reports"][0]["round"]
    assert receipt_tag(manifest, first, entry["device"]).hex() == entry["tag"]
    assert receipt_page(manifest, entry["device"]) == entry["page"]


def test_every_mechanism_and_protocol_has_a_device() -> None:
    assert {MANIFESTS[e["manifest"]].reporting for e in DEVICES} == set(MECHANISMS)
    runs = {MANIFESTS[e["manifest"]].mechanisms[e["attribute"]].protocol for e in DEVICES}
    assert runs == {
        "L-GRR",
        "L-OUE",
        "L-SUE",
        "L-OSUE",
        "L-SOUE",
        "GRR",
        "OUE",
        "LOLOHA",
        "L-SS",
        "SS",
    }


# --- `scripts/check_vectors.py`: right values pass, wrong ones and unknown ones do not.

STATISTICS = vectors.FOLDER / "statistics.json"


def check(*paths: Path) -> Result:
    return CliRunner().invoke(main, [str(path) for path in paths], catch_exceptions=False)


@pytest.mark.parametrize("name", ["calibration", "changes", "estimators", "statistics"])
def test_the_code_agrees_with_the_published_numbers(name: str) -> None:
    path = vectors.FOLDER / f"{name}.json"
    result = check(path)
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text())
    lines = {line.split()[0]: line for line in result.output.splitlines()[1:]}
    assert set(lines) == {kind for kind, value in document.items() if isinstance(value, list)}
    for kind, line in lines.items():
        assert f" {len(document[kind])} entries" in line
        assert float(line.split()[-1]) <= 1e-12


@pytest.mark.skipif(not (SHARED / "vectors").is_dir(), reason="no shared vectors beside this")
def test_the_code_agrees_with_numbers_worked_out_by_others() -> None:
    result = check(*sorted((SHARED / "vectors").glob("*.json")))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("kind", sorted(k for k, v in vectors.load("statistics.json").items() if v))
def test_a_wrong_number_is_noticed(kind: str, tmp_path: Path) -> None:
    """Each number of an entry, changed by a millionth; but inputs that do not always matter."""
    entries = vectors.load("statistics.json")[kind]
    if not isinstance(entries, list):
        return
    idle = {"eps_inf", "raw"}
    places = [path for path in numbers(entries[0]) if idle.isdisjoint(path)]
    assert len(places) >= 2
    for path in places:
        entry = copy.deepcopy(entries[0])
        place = entry
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] *= 1 + 1e-6
        assert check(written(tmp_path, {kind: [entry]})).exit_code == 1, path


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the floats in a document are."""
    if isinstance(value, float) and value:
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*path, key))


def written(folder: Path, document: Any) -> Path:
    path = folder / "values.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"novelties": [{"x": 1}]}, "unknown kind 'novelties'"),
        ({"nested": []}, "nested is not a list of entries"),
        ({"nested": [3]}, "cannot be checked: an entry is an object"),
        ({"nested": [{"protocol": "GRR", "k": 5}]}, "the field 'levels' is missing"),
        ({"nested": [{"protocol": "SUE", "k": 5, "levels": []}]}, "cannot be checked"),
        ({"note": "nothing else"}, "no lists of entries"),
        ([1, 2], "not a JSON object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_cannot_be_checked_fails(document: Any, message: str, tmp_path: Path) -> None:
    result = check(written(tmp_path, document), tmp_path / "absent.json", STATISTICS)
    assert result.exit_code == 1
    assert message in result.output
    assert "cannot be read" in result.output
    assert "change_log_ratio_two_cells" in result.output, "other files are checked nevertheless"

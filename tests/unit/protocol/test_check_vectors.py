"""`scripts/check_vectors.py`: right values pass, wrong ones and unknown ones do not."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from check_vectors import main
from tests.support.harness import ROOT, SHARED
from tests.support.protocol import vectors
from vector_checks import KINDS

Document = dict[str, Any]
STATISTICS = vectors.FOLDER / "statistics.json"
OWN = [STATISTICS, vectors.FOLDER / "calibration.json"]


def check(*paths: Path) -> Result:
    return CliRunner().invoke(main, [str(path) for path in paths], catch_exceptions=False)


def written(folder: Path, document: Any) -> Path:
    path = folder / "values.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_the_projects_own_values(path: Path) -> None:
    result = check(path)
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text())
    lines = {line.split()[0]: line for line in result.output.splitlines()[1:]}
    assert set(lines) == {kind for kind, value in document.items() if isinstance(value, list)}
    for kind, line in lines.items():
        assert f" {len(document[kind])} entries" in line
        assert float(line.split()[-1]) <= 1e-12


@pytest.mark.skipif(not (SHARED / "vectors").is_dir(), reason="no shared vectors beside this")
def test_values_worked_out_by_others() -> None:
    result = check(*sorted((SHARED / "vectors").glob("*.json")))
    assert result.exit_code == 0, result.output


def test_every_kind_is_met_somewhere() -> None:
    """The older kinds of the format in `test_the_older_format`."""
    met = {kind for path in OWN for kind in json.loads(path.read_text())}
    older = {"protocols", "feasibility", "thresholds", "score_interval", "simplex_projection"}
    assert set(KINDS) == (met | older) - {"note"}


OLDER: Document = {
    "note": "as published with the formulas",
    "protocols": [
        {
            "protocol": "L-GRR",
            "k": 2,
            "einf": 1.0,
            "e1": 0.3,
            "p1": 0.7310585786300049,
            "q1": 0.2689414213699951,
            "p2": 0.6610901383818866,
            "q2": 0.3389098616181135,
            "ps": 0.574442516811659,
            "qs": 0.425557483188341,
            "eps2_ln_p2_over_q2": 0.66815602015198,
            "var_star_n1": 11.02815144269852,
            "eps1_true": 0.3,
            "eps_t": {"1": 0.3, "2": 0.5532274156758249, "100": 1.0},
            "var_fixed_f025_n1": 11.02815144269852,
            "var_super_f025_n1": 11.21565144269852,
            "var_pooled_f0_n1": {"1": 11.02815144269852, "10": 1.931421379056865},
            "total_mse_n1": 22.05630288539704,
        }
    ],
    "feasibility": [
        {"einf": 0.1, "loue_max_e1": 0.06776513381691397, "lsoue_max_e1": 0.06666358088979268}
    ],
    "thresholds": [
        {
            "protocol": "L-OSUE",
            "k": 8,
            "einf": 2.0,
            "e1": 0.6,
            "thresholds_2_64": [
                "9223372036854775808",
                "2198905795380358826",
                "12751346329537211091",
                "5695397744172340525",
            ],
        }
    ],
    "score_interval": [
        {
            "protocol": "L-OSUE",
            "einf": 2.0,
            "e1": 0.6,
            "n": 100,
            "T": 1,
            "fhat": 0.05,
            "centre_used": 0.05,
            "V0": 0.10783693131007781,
            "V1": 0.1178369313100778,
            "lo": 0.0,
            "hi": 0.7146070001266521,
            "z": 1.959963984540054,
        }
    ],
    "simplex_projection": [
        {
            "inp": [0.5, 0.4, -0.1, 0.3],
            "out": [0.43333333333333335, 0.33333333333333337, 0.0, 0.23333333333333334],
        }
    ],
}


def test_the_older_format(tmp_path: Path) -> None:
    result = check(written(tmp_path, OLDER))
    assert result.exit_code == 0, result.output


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the floats in a document are."""
    if isinstance(value, float) and value:
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*path, key))


def changed(document: Document, path: tuple[Any, ...], factor: float) -> Document:
    other = copy.deepcopy(document)
    place = other
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] *= factor
    return other


def documents() -> Iterator[tuple[str, Document]]:
    """Files with one entry of one kind each."""
    for document in (OLDER, json.loads(STATISTICS.read_text())):
        for kind, entries in document.items():
            if isinstance(entries, list):
                yield kind, {kind: entries[:1]}


@pytest.mark.parametrize(
    ("kind", "document"), [pytest.param(*each, id=each[0]) for each in documents()]
)
def test_a_change_of_any_number_is_noticed(kind: str, document: Document, tmp_path: Path) -> None:
    """By a millionth. Some inputs do not always matter: eps_inf in one round, an impossible raw."""
    idle = {"eps_inf", "einf", "raw", "inp"}
    places = [path for path in numbers(document) if idle.isdisjoint(path)]
    missed = [
        path
        for path in places
        if check(written(tmp_path, changed(document, path, 1 + 1e-6))).exit_code != 1
    ]
    assert len(places) >= 2 or kind == "thresholds"
    assert missed == []


def test_a_change_of_the_last_digits_is_not(tmp_path: Path) -> None:
    kind = "change_log_ratio_two_cells"
    document, path = {kind: json.loads(STATISTICS.read_text())[kind]}, (kind, 0, "value")
    assert check(written(tmp_path, changed(document, path, 1 + 1e-14))).exit_code == 0
    assert check(written(tmp_path, changed(document, path, 1 + 1e-11))).exit_code == 1


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"novelties": [{"x": 1}]}, "unknown kind 'novelties'"),
        ({"novelties": 3}, "unknown kind 'novelties'"),
        ({"nested": []}, "nested is not a list of entries"),
        ({"nested": {"k": 2}}, "nested is not a list of entries"),
        ({"nested": [3]}, "cannot be checked: an entry is an object"),
        ({"nested": [{"protocol": "GRR", "k": 5}]}, "the field 'levels' is missing"),
        ({"nested": [{"protocol": "SUE", "k": 5, "levels": []}]}, "cannot be checked"),
        ({"choice": [{"k": "x", "eps_inf": 1, "eps_1": 2, "method": 1, "chosen": ""}]}, "cannot"),
        ({"note": "nothing else"}, "no lists of entries"),
        ([1, 2], "not a JSON object"),
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"x": "\\ud800"}', "no lists of entries"),
    ],
)
def test_what_cannot_be_checked_is_said_and_fails(document: Any, said: str, tmp_path: Path) -> None:
    result = check(written(tmp_path, document))
    assert result.exit_code == 1
    assert said in result.output


def test_a_field_that_nobody_looks_at_fails(tmp_path: Path) -> None:
    entry = json.loads(STATISTICS.read_text())["change_log_ratio_two_cells"][0]
    remark = {"change_log_ratio_two_cells": [{**entry, "remark": "a text is one"}]}
    assert check(written(tmp_path, remark)).exit_code == 0
    more = {"change_log_ratio_two_cells": [{**entry, "ratio_of_three_cells": 4.0}]}
    result = check(written(tmp_path, more))
    assert result.exit_code == 1
    assert "unknown fields ratio_of_three_cells" in result.output


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_a_file_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    result = check(tmp_path / name, STATISTICS)
    assert result.exit_code == 1
    assert "cannot be read" in result.output
    assert "linked_tables" in result.output, "the other file was checked nevertheless"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe{}")
    result = check(tmp_path / "x.json")
    assert result.exit_code == 1
    assert "is not JSON" in result.output


def test_as_a_command() -> None:
    command = [sys.executable, str(ROOT / "scripts/check_vectors.py"), str(STATISTICS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    none = subprocess.run(command[:2], capture_output=True, text=True, check=False)
    assert none.returncode == 2
    assert "Usage" in none.stderr

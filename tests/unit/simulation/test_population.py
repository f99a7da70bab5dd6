"""Words, files and data sets become whole numbers of devices, or a clear refusal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from protocol_spec import Manifest, ManifestError
from simulation.population import (
    MAX_DEVICES,
    NAMES,
    SimulationError,
    apportion,
    by_value,
    dishonest,
    for_dataset,
    from_records,
    load,
    populate,
)
from tests.support.harness import ROOT
from tests.support.protocol.statistics import LIMIT, binomial_z
from tests.support.simulation import FUEL, HOURS, both, campaign

CENSUS = [9, 52, 47, 17, 3, 7, 24, 15, 5, 10, 2, 3, 6, 8, 6, 6, 51, 38, 8, 10, 9, 10, 3, 4, 5]
CENSUS += [43, 43, 43, 5, 3, 3, 3, 2]

SIZES = {
    "nursery": (12_960, [3, 5, 4, 4, 3, 2, 3, 3, 5]),
    "adult": (45_222, [7, 16, 7, 14, 6, 5, 2, 41, 2]),
    "ms_fimu": (88_935, [3, 3, 8, 12, 37, 11]),
    "census_income": (299_285, CENSUS),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_has_the_paper_s_size_and_counts_every_row_once(name: str) -> None:
    data = load(name)
    assert (data.n, [a.k for a in data.attributes]) == SIZES[name]
    assert {sum(a.counts) for a in data.attributes} == {data.n}
    assert all(len(set(a.values)) == len(a.counts) for a in data.attributes)


@pytest.mark.parametrize("name", NAMES)
def test_the_counts_are_those_of_the_published_marginals(name: str) -> None:
    source = ROOT.parent / "shared" / "marginals" / f"{name}.json"
    if not source.exists():
        pytest.skip("the marginals are not next to this checkout")
    published = json.loads(source.read_text(encoding="utf-8"))
    assert {a.name: dict(zip(a.values, a.counts)) for a in load(name).attributes} == published


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(LookupError, match="nursery, adult, ms_fimu, census_income"):
        load("iris")


ONE = campaign()


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("uniform", [250, 250, 250, 250]),
        ("zipf", [480, 240, 160, 120]),
        ("zipf:2", [702, 176, 78, 44]),
        ("geometric", [533, 267, 133, 67]),
        ("geometric:0.2", [339, 271, 217, 173]),
    ],
)
def test_a_distribution_becomes_whole_numbers(word: str, wanted: list[int]) -> None:
    assert populate(ONE, [word], 1_000, 1).counts[0].tolist() == wanted


def test_a_dirichlet_follows_the_seed() -> None:
    first, again = (populate(ONE, ["dirichlet:0.5"], 1_000, 1).counts[0] for _ in range(2))
    other = populate(ONE, ["dirichlet:0.5"], 1_000, 2).counts[0]
    assert (first == again).all()
    assert (first != other).any()
    assert first.sum() == other.sum() == 1_000


def test_shares_are_apportioned_to_within_one() -> None:
    weights = np.array([1.0, 1.0, 1.0, 4.0])
    for devices in range(1, 40):
        counts = apportion(weights, devices)
        assert counts.sum() == devices
        assert (np.abs(counts - weights / 7.0 * devices) < 1.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_and_its_manifest_fit(name: str) -> None:
    manifest = Manifest.from_toml(for_dataset(name, eps_inf=2.0, eps_1=0.6))
    population = populate(manifest, [name], None, 1)
    assert population.devices == load(name).n
    for held, marginal in zip(population.counts, load(name).attributes):
        assert held.tolist() == list(marginal.counts)


def test_attributes_can_differ() -> None:
    held = populate(both(), ["hour=zipf", "fuel=uniform"], 100, 1).counts
    assert held[0].tolist() == [25] * 4
    assert held[1][0] > held[1][-1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("counts.csv", "value,count\nwood,3\npump,1\n"),
        ("counts.csv", "attribute,value,count\nfuel,wood,3\nfuel,pump,1\n"),
        ("counts.json", '{"wood": 3, "pump": 1}'),
        ("counts.json", '{"fuel": {"pump": 1, "wood": 3}, "more": {}}'),
    ],
)
def test_a_file_of_counts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    population = populate(ONE, [str(tmp_path / name)], None, 1)
    assert (population.devices, population.counts[0].tolist()) == (4, [3, 0, 0, 1])


RECORDS = "fuel,hour,note\nwood,h1,a\nwood,h1,b\npump,h3,c\nnuclear,h3,d\n"


@pytest.mark.parametrize("name", ["homes.csv", "homes.json"])
def test_a_file_of_records_has_a_device_for_each(tmp_path: Path, name: str) -> None:
    """Answers of one device stay together; a value that the manifest does not have is its last."""
    rows = list(csv.DictReader(RECORDS.splitlines()))
    (tmp_path / name).write_text(RECORDS if name.endswith("csv") else json.dumps(rows))
    made = populate(both(), [str(tmp_path / name)], None, 1)
    assert made.devices == 4
    assert made.counts[0].tolist() == [2, 0, 0, 2]
    assert made.holdings(7).tolist() == [[0, 1], [0, 1], [3, 3], [3, 3]]
    more = populate(both(), [str(tmp_path / name)], 10, 1)
    assert (more.devices, more.counts[0].sum()) == (10, 10)
    assert {tuple(row) for row in more.holdings(1).tolist()} == {(0, 1), (3, 3)}
    alone = populate(both(), [f"fuel={tmp_path / name}", "hour=uniform"], 8, 1)
    assert alone.counts[0].tolist() == [4, 0, 0, 4]


def test_a_data_frame_is_a_population() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.StringIO(RECORDS))
    assert from_records(both(), frame).counts[0].tolist() == [2, 0, 0, 2]
    with pytest.raises(SimulationError, match="no column 'hour'; their columns are fuel, note"):
        from_records(both(), frame.drop(columns="hour"))
    with pytest.raises(SimulationError, match="there are no records"):
        from_records(both(), frame[:0])


def test_every_device_draws_one_attribute() -> None:
    population = populate(both(), ["uniform"], 10_000, 1)
    drawn = population.drawn(7)
    assert sum(int(held.sum()) for held in drawn) == 10_000
    assert abs(binomial_z(int(drawn[0].sum()), 10_000, 0.5)) < LIMIT, "seed 7"
    assert all((held <= all_of_them).all() for held, all_of_them in zip(drawn, population.counts))


@pytest.mark.parametrize(
    ("words", "devices", "message"),
    [
        (["zip"], 10, "'zip' is unknown"),
        (["zipf:-1"], 10, "needs a positive number"),
        (["zipf:x"], 10, "needs a positive number"),
        (["uniform:2"], 10, "needs a positive number, or none"),
        (["geometric:1"], 10, "below 1"),
        (["uniform"], None, "add --devices"),
        (["uniform"], 0, "between 1 and"),
        (["uniform"], MAX_DEVICES + 1, "between 1 and"),
        (["adult"], 10, "adult has no attribute 'fuel'"),
        (["hour=zipf"], 10, "no distribution for fuel"),
        (["zipf", "uniform"], 10, "more than one distribution for fuel"),
        (["nowhere.csv"], 10, "No such file"),
    ],
)
def test_a_population_that_cannot_be_used_is_refused(
    words: list[str], devices: int | None, message: str
) -> None:
    with pytest.raises(SimulationError, match=message):
        populate(ONE, words, devices, 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "value,count\nwood,many\n", "'many' is not a number of devices"),
        ("x.csv", "name,number\nwood,3\n", "no column 'fuel'; their columns are name, number"),
        ("x.json", "[1, 2]", "is no table; it must have a row for each device"),
        ("x.json", '{"wood": 1, "coal": 2}', "'coal' of fuel, which is not in the manifest"),
        ("x.json", '{"fuel": {"wood": 1.5}}', "whole numbers"),
        ("x.json", '{"wood": 0}', "not all 0"),
    ],
)
def test_a_file_that_holds_no_counts_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SimulationError, match=message):
        populate(ONE, [str(tmp_path / name)], 10, 1)


def test_an_infeasible_budget_is_refused() -> None:
    with pytest.raises(ManifestError, match="eps_1"):
        Manifest.from_toml(for_dataset("nursery", eps_inf=1.0, eps_1=2.0))


@pytest.mark.parametrize("text", ["gas=2", "gas=x", "coal=0.1", "gas"])
def test_a_bad_drop_out_is_refused(text: str) -> None:
    with pytest.raises(SimulationError, match=text.partition("=")[0]):
        by_value(ONE, [text])


@pytest.mark.parametrize("texts", [["gas"], ["x:gas"], ["5:coal"], ["5:gas", "6:oil"]])
def test_bad_dishonesty_is_refused(texts: list[str]) -> None:
    with pytest.raises(SimulationError):
        dishonest(ONE, texts)


def test_a_value_of_two_attributes_needs_its_attribute() -> None:
    twins = campaign(attributes=FUEL + HOURS.replace('"h0"', '"gas"'))
    with pytest.raises(SimulationError, match="write attribute:value"):
        dishonest(twins, ["5:gas"])
    assert dishonest(twins, ["5:hour:gas"]) == ((1, 5, 0),)

"""Every refusal of a manifest names the field, shows the value and says what would be right."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from protocol_spec import AllomfreeError, Manifest, ManifestError, Problem
from tests.support.protocol import vectors
from tests.support.protocol.manifest_cases import MINIMAL_TOML
from tests.support.tables import every

REFUSED = vectors.load("manifests.json")["refused"]


def problems(toml: str) -> tuple[Problem, ...]:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(toml)
    assert isinstance(caught.value, AllomfreeError)
    assert isinstance(caught.value, ValueError)
    return caught.value.problems


@every("entry", REFUSED, ids=lambda entry: f"{entry['field']} of\n{entry['toml']}")
def test_the_published_refusals(entry: dict[str, str]) -> None:
    found = problems(entry["toml"])
    assert entry["field"] in [problem.field for problem in found]
    for problem in found:
        assert problem.remedy
        separator = ":" if problem.value is None else " = "
        assert str(problem).startswith(f"{problem.field}{separator}")
        assert str(problem).endswith(problem.remedy)


# A change to the minimal manifest, and what the message must contain: the value and the remedy.
TOLD = (
    ("eps_inf = 1", "eps_inf = 25.0", "eps_inf = 25.0: must be a number from 1e-09 to 20"),
    ("eps_1 = 0.5", "eps_1 = 1.5", "eps_1 = 1.5: must be smaller than eps_inf = 1.0"),
    ('"1d"', '"1 day"', 'rounds.period = "1 day": write a duration such as'),
    ("T00:00:00Z", "T00:00:00", "rounds.first = 2027-01-01T00:00:00: add the time zone"),
    ("count = 30", "count = 0", "rounds.count = 0: must be a whole number from 1 to 65536"),
    ('["open", "closed"]', '["a", "a"]', 'attributes[0].values = ["a", "a"]: must not repeat "a"'),
    ('slug = "doors"', "", "slug: is required"),
    ('"door"', '"Door"', 'attributes[0].name = "Door": use a-z first'),
    ("eps_inf = 1", "eps_inf = 1\nmax_values = 9", "max_values = 9: no attribute has more than 2"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nmin_report = 5", 'did you mean "min_reports"?'),
    (
        "count = 30",
        "count = 30\ngraze = 5",
        'rounds.graze = 5: is not a field of [rounds]; did you mean "grace"?',
    ),
)


@pytest.mark.parametrize(("old", "new", "told"), TOLD)
def test_the_message(old: str, new: str, told: str) -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(MINIMAL_TOML.replace(old, new))
    assert told in str(caught.value)


def test_an_infeasible_protocol_says_what_it_could_reach() -> None:
    text = MINIMAL_TOML.replace("0.5", "0.7") + 'protocol = "L-SOUE"\n'
    (problem,) = problems(text)
    assert problem.field == "attributes[0].protocol"
    assert problem.value == "L-SOUE"
    assert "0.6636433185293905" in problem.remedy
    assert "L-OSUE" in problem.remedy


def test_all_problems_are_listed_at_once() -> None:
    text = (
        MINIMAL_TOML.replace("doors", "Doors", 1)
        .replace("eps_inf = 1", "eps_inf = nan\ncolour = 3")
        .replace("count = 30", "count = -1")
        .replace('["open", "closed"]', '["open"]\nprotocol = "best"')
    )
    fields = [problem.field for problem in problems(text)]
    inside = ("attributes[0].protocol", "attributes[0].values", "rounds.count")
    assert sorted(fields) == sorted(("slug", "eps_inf", "colour", *inside))


def test_problems_between_fields_are_listed_at_once_too() -> None:
    head = "created = 2028-01-01T00:00:00Z\nexpires = 2027-01-01T00:00:00Z\nmax_values = 3\n"
    fields = {problem.field for problem in problems(head + MINIMAL_TOML)}
    assert fields == {"created", "expires", "max_values"}


def test_the_message_has_a_line_for_each_problem() -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(MINIMAL_TOML.replace("eps_inf = 1", "").replace("count = 30", ""))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems) == 2


def test_long_values_are_cut_in_the_message() -> None:
    (problem,) = problems(MINIMAL_TOML.replace('"Open doors"', f'"{"x" * 5000}"'))
    assert len(str(problem)) < 260
    assert problem.value == "x" * 5000


def test_an_error_of_syntax_says_where() -> None:
    (problem,) = problems("slug = \ntitle = 3\n")
    assert problem.field == "manifest"
    assert "line 1" in problem.remedy


def test_a_manifest_too_large_for_the_wire() -> None:
    values = [f"{'x' * 90}{i}" for i in range(4000)]
    text = MINIMAL_TOML.replace('["open", "closed"]', repr(values))
    (problem,) = problems(text)
    assert problem.field == "manifest"
    assert "262144" in problem.remedy


@pytest.mark.parametrize("count", [2, 4096])
def test_as_many_values_as_allowed(count: int) -> None:
    text = MINIMAL_TOML.replace('["open", "closed"]', repr([f"v{i}" for i in range(count)]))
    assert Manifest.from_toml(text).attributes[0].k == count


def test_more_values_or_attributes_than_allowed() -> None:
    values = repr([f"v{i}" for i in range(4097)])
    (problem,) = problems(MINIMAL_TOML.replace('["open", "closed"]', values))
    assert problem.field == "attributes[0].values"
    head, attribute = MINIMAL_TOML.split("[[attributes]]")
    many = "".join("[[attributes]]" + attribute.replace("door", f"d{i}", 1) for i in range(129))
    (problem,) = problems(head + many)
    assert problem.field == "attributes"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path, remedy in (
        (missing, "cannot be read"),
        (tmp_path, "cannot be read"),
        (binary, "UTF-8"),
    ):
        with pytest.raises(ManifestError, match=remedy) as caught:
            Manifest.from_file(path)
        assert str(path)[:60] in str(caught.value)


def test_what_is_wrong_in_a_file_is_told_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "heat.toml"
    told = {
        "eps_inf": f"{file}: eps_inf: is required",
        "slug": f"{file}: slug: is required",
    }
    file.write_text(MINIMAL_TOML.replace('slug = "doors"', "").replace("eps_inf = 1", ""))
    with pytest.raises(ManifestError) as caught:
        Manifest.from_file(file)
    assert set(told.values()) <= set(str(caught.value).splitlines())
    file.write_text("slug = =\n")
    with pytest.raises(ManifestError, match=r"heat\.toml: manifest: is not TOML: .*line 1"):
        Manifest.from_file(file)
    with pytest.raises(ManifestError, match=r"cold\.toml: manifest: cannot be read: No such file"):
        Manifest.from_file(tmp_path / "cold.toml")


def test_one_wrong_field_does_not_hide_what_is_wrong_between_others() -> None:
    text = "created = 2028-01-01T00:00:00Z\n" + MINIMAL_TOML.replace("doors", "Doors", 1)
    found = {problem.field: str(problem) for problem in problems(text)}
    assert found.keys() == {"slug", "created"}
    assert found["created"] == (
        "created = 2028-01-01T00:00:00Z: must not be after rounds.first = 2027-01-01T00:00:00Z"
    )


NOW = 1_800_000_000


def test_now_is_resolved_before_anything_is_published() -> None:
    text = MINIMAL_TOML.replace("2027-01-01T00:00:00Z", '"now"')
    manifest = Manifest.from_toml(text, now=NOW)
    assert (manifest.rounds.first, manifest.created) == (NOW, NOW)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    written = datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert Manifest.from_toml(text.replace('"now"', written)).digest == manifest.digest
    before = int(time.time())
    assert before <= Manifest.from_toml(text).rounds.first <= time.time()
    with pytest.raises(ManifestError, match="without quotation marks"):
        Manifest.from_toml(text.replace('"now"', '"Now"'))


@pytest.mark.parametrize("number", [1, 2])
def test_an_eps_1_too_large_is_told_beside_what_is_wrong_elsewhere(number: int) -> None:
    text = MINIMAL_TOML.replace("eps_1 = 0.5", "eps_1 = 1.5")
    text = text.replace("format = 1", f"format = {number}")
    for old, new, field in (
        ("count = 30", "count = 0", "rounds.count"),
        ('"door"', '"Door"', "attributes[0].name"),
        ("eps_inf = 1", "eps_inf = 1\nmax_values = 0", "max_values"),
    ):
        found = {problem.field: str(problem) for problem in problems(text.replace(old, new))}
        assert found.keys() == {"eps_1", field}
        assert found["eps_1"].startswith("eps_1 = 1.5: must be smaller than eps_inf = 1.0")
    (only,) = problems(text)
    assert only.field == "eps_1"
    (only,) = problems(text.replace("eps_inf = 1", "eps_inf = nan"))
    assert only.field == "eps_inf"


def test_a_wrong_domain_has_no_second_error_that_follows_from_it() -> None:
    text = MINIMAL_TOML.replace("format = 1", "format = 2")
    domain = '["open", "closed"]'
    twice = text.replace(domain, '["a", "a"]\notherwise = "zzz"')
    assert [problem.field for problem in problems(twice)] == ["attributes[0].values"]
    falling = text.replace(f"values = {domain}", "edges = [inf, 2, 1]\nlow = 0.0\nhigh = 9.0")
    assert [problem.field for problem in problems(falling)] == ["attributes[0].edges"]
    numbers = text.replace(f"values = {domain}", 'edges = [1, 2, 3]\notherwise = "zzz"')
    assert [problem.field for problem in problems(numbers)] == ["attributes[0].otherwise"]


@pytest.mark.parametrize(
    ("written", "hint"), [("nwo", '; did you mean "now"?'), ("NOW", '; did you mean "now"?')]
)
def test_the_first_round_may_also_begin_now(written: str, hint: str) -> None:
    told = 'write it without quotation marks, as in 2027-01-01T00:00:00Z, or write "now"'
    text = MINIMAL_TOML.replace("2027-01-01T00:00:00Z", f'"{written}"')
    assert [problem.remedy for problem in problems(text)] == [told + hint]
    (problem,) = problems(text.replace(written, "tomorrow"))
    assert problem.remedy == told
    (problem,) = problems(f'created = "{written}"\n{MINIMAL_TOML}')
    assert "now" not in problem.remedy

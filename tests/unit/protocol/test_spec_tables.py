"""The generated parts of the specification are what the code says: `spec_tables.py --check`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import spec_tables
from spec_asyncapi import SpecificationError, renewed
from tests.support.harness import ROOT

DOCUMENTS = ("README.md", "asyncapi.yaml")


def test_the_specification_says_what_the_code_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert spec_tables.main(["--check"]) == 0, capsys.readouterr().out


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in DOCUMENTS:
        shutil.copy(ROOT / "protocol_spec" / name, tmp_path / name)
    return tmp_path


# A change of the code is a document that was right before it: each is one number or row of it.
CHANGES = [
    ("README.md", "| report, bytes | 533 |", "| report, bytes | 532 |"),
    ("README.md", "| `title` | text | 1 to 100 |", "| `title` | text | 1 to 99 |"),
    ("README.md", "| int | 1 to 1000000000000 | 200 |", "| int | 1 to 1000000000000 | 100 |"),
    (
        "README.md",
        "/pub/state` | collector, all | 1 | yes",
        "/pub/state` | collector, all | 1 | no",
    ),
    ("README.md", "| `late` | for a round already sealed |\n", ""),
    ("README.md", "cd 01 2c                        round 300", "cd 01 2d   round 301"),
    ("README.md", "| colour | L-GRR | 131", "| colour | L-GRR | 132"),
    ("README.md", "| `n` | int |", "| `n` | float |"),
    ("asyncapi.yaml", "x-max-bytes: 262144", "x-max-bytes: 262143"),
    ("asyncapi.yaml", "enum: [0, 1, 2]", "enum: [0, 1]"),
    ("asyncapi.yaml", "        - late\n", ""),
    ("asyncapi.yaml", "maximum: 253402300799", "maximum: 253402300800"),
    ("asyncapi.yaml", "retain: true", "retain: false"),
    ("asyncapi.yaml", "default: allomfree", "default: allonfree"),
]


@pytest.mark.parametrize(("document", "said", "otherwise"), CHANGES)
def test_a_difference_is_shown_with_what_to_run(
    copy: Path, capsys: pytest.CaptureFixture[str], document: str, said: str, otherwise: str
) -> None:
    right = {name: (copy / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    text = right[document]
    assert said in text
    (copy / document).write_text(text.replace(said, otherwise, 1), encoding="utf-8")
    assert spec_tables.main(["--check"], copy) == 1
    shown = capsys.readouterr()
    assert f"{document} as the code says" in shown.out
    assert "run ./scripts/spec_tables.py" in shown.err
    assert spec_tables.main([], copy) == 0
    for name, before in right.items():
        written = (copy / name).read_text(encoding="utf-8")
        assert written == before, "running it is all that is needed"


UNEXPLAINED = [
    ("README.md", r"\| `retention` \|.*\n", "`retention` is not explained"),
    ("README.md", r"\| `\{ns\}/v1/\{campaign\}/up/\{device\}/request` \|.*\n", "is not explained"),
    ("README.md", r"\| `device_bound` \| float \|.*\n", "`device_bound` is not explained"),
    ("asyncapi.yaml", r"    summary: A device asks to be forgotten.\n", "request is not explained"),
    ("README.md", r"<!-- (generated:|end of) limits -->\n", "do not agree"),
]


@pytest.mark.parametrize(("document", "words", "complaint"), UNEXPLAINED)
def test_what_only_an_author_can_write_is_asked_for(
    copy: Path, capsys: pytest.CaptureFixture[str], document: str, words: str, complaint: str
) -> None:
    text = (copy / document).read_text(encoding="utf-8")
    changed, times = re.subn(words, "", text)
    assert times
    (copy / document).write_text(changed, encoding="utf-8")
    assert spec_tables.main(["--check"], copy) == 1
    assert complaint in capsys.readouterr().err


def test_the_author_keeps_what_is_outside_the_blocks() -> None:
    text = "before\n  # generated: a\n  old\n  # end of a\nafter\n"
    made = renewed(text, {"a": lambda inside: inside.strip() + "\nnew"})
    assert made == "before\n  # generated: a\n  old\n  new\n  # end of a\nafter\n"
    with pytest.raises(SpecificationError, match=r"\['b'\]"):
        renewed(text, {"a": str, "b": str})

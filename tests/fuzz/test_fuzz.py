"""S2: every decoder, parser and packet reader, over all inputs that ever did something new."""

from __future__ import annotations

import random
import re
from itertools import islice
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.support.fuzzing import (
    CORPUS,
    LARGEST_KEPT,
    Broken,
    Session,
    Target,
    all_targets,
    corpus,
    tried,
)
from tests.support.harness import ROOT

CHANGED = 400  # inputs of each target beyond those that are known; `run.py` runs longer
NAMES = sorted(all_targets(Path(gettempdir())))


@pytest.mark.parametrize("name", NAMES)
def test_no_input_breaks_it(name: str, tmp_path: Path) -> None:
    session = Session(all_targets(tmp_path)[name], random.Random(name))
    session.replay()
    assert len(list(islice(session.new(), CHANGED))) == CHANGED


def test_the_corpus_is_small_and_of_targets_that_exist(tmp_path: Path) -> None:
    targets = all_targets(tmp_path)
    for file in CORPUS.iterdir():
        assert max(map(len, corpus(targets[file.stem]))) <= LARGEST_KEPT


def test_a_fault_is_found_and_can_be_repeated() -> None:
    """The loop itself: a parser with one bad input in a thousand does not survive it."""

    def fragile(data: bytes) -> str:
        if data[:1] == b"{" and b"\xff" in data:
            raise IndexError("deep inside")
        return str(data[:1])

    session = Session(Target("fragile", fragile, [b"seed"]), random.Random(1))
    session.replay()
    with pytest.raises(Broken, match="IndexError: deep inside") as found:
        list(islice(session.new(), 200_000))
    with pytest.raises(Broken):
        tried(session.target, bytes.fromhex(str(found.value).split()[-1]))


def test_every_decoder_and_parser_has_a_target() -> None:
    """Public functions called `decode_…`, `parse_…`, and what reads packets, are all fuzzed."""
    support = [path.read_text(encoding="utf-8") for path in (ROOT / "tests/support").rglob("*.py")]
    named = "".join(text for text in support if "Target(" in text or "DECODERS" in text)
    wanted = re.compile(r"^def ((?:decode_|parse_|read_publish|packet_span)\w*)\(", re.M)
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in ("protocol_spec", "edge_client", "collector")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in wanted.findall(path.read_text(encoding="utf-8"))
        if name not in named
    ]
    assert missing == []

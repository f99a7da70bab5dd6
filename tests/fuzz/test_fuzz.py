"""S2: every decoder, parser and packet reader, over all inputs that ever did something new."""

from __future__ import annotations

import ast
import random
from itertools import islice
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.support.fuzzing.loop import CORPUS, LARGEST_KEPT, Broken, Session, corpus, keep, tried
from tests.support.fuzzing.mutate import LONGEST, mutated
from tests.support.fuzzing.target import Target
from tests.support.fuzzing.targets import all_targets
from tests.support.source import PRODUCT, sources

CHANGED = 400  # inputs of each target beyond those that are known; `run.py` runs longer
NAMES = sorted(all_targets(Path(gettempdir())))


@pytest.fixture
def targets(tmp_path: Path) -> dict[str, Target]:
    return all_targets(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_no_input_breaks_it(targets: dict[str, Target], name: str) -> None:
    session = Session(targets[name], random.Random(name))
    session.replay()
    assert len(list(islice(session.new(), CHANGED))) == CHANGED


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_is_small_and_named_by_content(
    targets: dict[str, Target], name: str, tmp_path: Path
) -> None:
    for data in corpus(targets[name]):
        assert len(data) <= LARGEST_KEPT
        assert (CORPUS / name / keep(targets[name], data, tmp_path / "again").name).exists()


def test_the_corpus_is_of_targets_that_exist() -> None:
    assert {file.name for file in CORPUS.iterdir()} <= set(NAMES)


def test_a_fault_is_found_and_can_be_repeated() -> None:
    """The loop itself: a parser with one bad input in a thousand does not survive it."""

    def fragile(data: bytes) -> str:
        if data[:1] == b"{" and b"\xff" in data:
            raise IndexError("deep inside")
        return str(data[:1])

    session = Session(Target("fragile", fragile, [b"seed"]), random.Random(1), Path("nowhere"))
    session.replay()
    with pytest.raises(Broken, match="IndexError: deep inside") as found:
        list(islice(session.new(), 200_000))
    words = str(found.value).split()
    with pytest.raises(Broken):
        tried(session.target, bytes.fromhex(words[-1]))


def test_inputs_are_bounded_and_the_same_for_a_seed() -> None:
    def some(seed: int) -> list[bytes]:
        dice = random.Random(seed)
        return [mutated([b"", b"abc" * 1000], [b"word"], dice) for _ in range(200)]

    assert some(1) == some(1) != some(2)
    assert max(map(len, some(1))) <= LONGEST


def test_every_decoder_and_parser_has_a_target() -> None:
    """Public functions called `decode_…`, `parse_…`, and what reads packets, are all fuzzed."""
    support = Path(__file__).parents[1] / "support"
    fuzzed = [*sorted((support / "fuzzing").glob("*.py")), support / "protocol" / "decoders.py"]
    named = "".join(file.read_text(encoding="utf-8") for file in fuzzed)
    missing = [
        f"{source.shown}: {node.name}"
        for source in sources(*PRODUCT)
        for node in source.tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith(("decode_", "parse_", "read_publish", "packet_span"))
        and node.name not in named
    ]
    assert missing == []

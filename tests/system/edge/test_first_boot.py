"""F7: a power cut at any moment of a first start, a join and a first draw.

What a real process asked of the kernel is recorded; every state in which a power cut could have
left its directory is made, and opened. Nothing that was never used is refused as lost; nothing
that was sent is ever drawn again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.agent import why_not
from edge_client.errors import EdgeError
from edge_client.store import Store
from protocol_spec import Manifest
from tests.support.campaigns import manifest
from tests.support.harness import need
from tests.support.power_cuts import Files, power_cuts, recorded, restore

JOIN_AND_DRAW = """
import sys
from edge_client import EdgeClient
from protocol_spec import Manifest

state, manifest = sys.argv[1:]
asked = Manifest.from_bytes(bytes.fromhex(manifest))
with EdgeClient(state) as client:
    os.write(9, b"opened")
    invitation = client.invitation(manifest=asked, broker="mqtt://127.0.0.1:1")
    client.join(invitation, device="device")
    os.write(9, b"joined")
    client.agent.draw(client.find(), lambda _: "wood")
    os.write(9, b"sent")
"""


@pytest.fixture(autouse=True)
def strace() -> None:
    need("strace")
    if reason := why_not():
        pytest.skip(reason)


def memory(directory: Path, asked: Manifest) -> tuple[object, ...]:
    """What a device remembers: attribute, memos, reports and charges."""
    with Store(directory, exclusive=True) as store:
        joined = [(m.device, m.attribute_index, m.last_round) for m in store.memberships()]
        reports = [row.payload for row in store.reports(asked.campaign)]
        return joined, store.memos(asked.campaign), reports, store.ledger()


def found_after(files: Files | None, place: Path, asked: Manifest) -> tuple[object, ...] | str:
    restore(files, place)
    try:
        return memory(place, asked)
    except EdgeError as error:
        return type(error).__name__


@pytest.mark.slow
def test_every_power_cut_of_a_first_start(tmp_path: Path) -> None:
    asked, state = manifest(), tmp_path / "state"
    events = recorded(JOIN_AND_DRAW, state, tmp_path / "strace", asked.to_bytes().hex())
    cuts, whole = power_cuts(state, events), memory(state, asked)
    unused: list[tuple[object, ...]] = [([], {}, [], []), ([("device", 0, -1)], {}, [], [])]
    outcomes = Counter[str]()
    for number, (note, files) in enumerate(cuts):
        told = found_after(files, tmp_path / str(number), asked)
        if note == "sent":
            assert told == whole, "what was sent is remembered, for ever"
        else:
            assert told in (*unused, whole), note
        outcomes[note] += 1
    assert outcomes.keys() == {"", "opened", "joined", "sent"}
    assert outcomes.total() > 300


@pytest.mark.slow
def test_the_model_finds_what_was_not_synced(tmp_path: Path) -> None:
    """A control: a name without its directory, a content without its file, the directory itself."""
    hasty = (
        "import sys\nos.mkdir(sys.argv[1])\n"
        "file = os.open(sys.argv[1] + '/memo', os.O_WRONLY | os.O_CREAT)\n"
        "os.write(file, b'answer' * 200)\n"
        "os.write(9, b'sent')\n"
        "os.fsync(file)\nos.write(9, b'file synced')\n"
        "os.fsync(os.open(sys.argv[1], os.O_RDONLY))\nos.write(9, b'name synced')\n"
        "os.fsync(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY))\nos.write(9, b'all synced')\n"
    )
    events = recorded(hasty, tmp_path / "state", tmp_path / "strace")
    cuts = {note: set[Files | None]() for note, _ in power_cuts(tmp_path / "state", events)}
    for note, files in power_cuts(tmp_path / "state", events):
        cuts[note].add(files)
    whole: Files = (("memo", b"answer" * 200),)
    assert {None, (), (("memo", b""),), (("memo", bytes(1200)),), whole} <= cuts["sent"]
    assert (("memo", b"answer" * 100),) in cuts["sent"], "torn"
    assert cuts["name synced"] == {None, whole}
    assert cuts["all synced"] == {whole}

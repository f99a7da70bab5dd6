"""Data for the page: a simulation with every kind of histogram, and a campaign that means harm."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from collector.data_dir import open_store
from collector.opening import ADDRESS_FILE as ADDRESS
from collector.records import Campaign, Candidate, Refusal
from collector.results.facts import write_truth
from collector.rounds import sealing as rounds
from collector.store import Store
from protocol_spec import Manifest, Outcome, Randomiser
from tests.support.campaigns import manifest_text
from tests.support.results import rooms, store_windows

SEED: Final = 20_240_607
HOUR: Final = 3600
ENOUGH, FEW = 200, 37
SEALED: Final = 4
DEVICES: Final = {"heating": 400, "quiet-hour": 400, "rare": FEW, "harm": 400}
ATTRIBUTES: Final = f"""
[[attributes]]
name = "heating"
question = "What heats your home?"
values = ["district heat", "gas", "heat pump", "oil", "wood"]
[[attributes]]
name = "quiet-hour"
question = "In which hour is your home at its quietest?"
values = {json.dumps([f"{hour:02d}:00" for hour in range(24)])}
[[attributes]]
name = "rare"
question = "Which pet do you keep?"
values = ["cat", "dog", "none"]
"""
# Each would set a mark or ask for an address, if it became more than text.
HARM: Final = (
    "<script>window.hurt=1</script>",
    '"><img src=/hurt onerror="window.hurt=1">',
    '<a href="javascript:window.hurt=1">gas</a>',
    "<b>bold</b> %{x} &amp; ${y}",
)
JAVASCRIPT: Final = "javascript:window.hurt=1"
HOSTILE: Final = f"""
[[attributes]]
name = "harm"
question = {json.dumps(HARM[0])}
values = {json.dumps([*HARM, JAVASCRIPT])}
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A data directory with the campaigns, by their names."""

    data: Path
    manifest: Path
    simulation: str
    hostile: str
    windows: str


def build(data: Path) -> Sample:
    """Four sealed rounds and one that fills, drawn by the devices' own code from a fixed seed."""
    store, chance = open_store(data), random.Random(SEED)
    file = data / "demo.toml"
    file.write_text(_text("demo", ATTRIBUTES))
    simulation = store.open_campaign(Manifest.from_file(file), int(time.time()))
    truth = _collect(store, simulation, chance)
    plain = Manifest.from_toml(_text("harm", HOSTILE))
    harmful = replace(plain, title=HARM[0], purpose=HARM[1], owner=HARM[2], contact=JAVASCRIPT)
    hostile = store.open_campaign(harmful, int(time.time()))
    _collect(store, hostile, chance)
    windows = store.open_campaign(rooms("once", first=hostile.manifest.rounds.first), 0)
    store_windows(store, windows)
    store.close()
    (data / ADDRESS).write_text("mqtts://broker.example:8883/allomfree")
    write_truth(data, simulation.name, truth)
    return Sample(data, file, simulation.name, hostile.name, windows.name)


def _text(slug: str, attributes: str) -> str:
    first = int(time.time()) - HOUR * (SEALED + 2) + HOUR // 2
    text = manifest_text(slug=slug, first=first, eps_inf=4.0, eps_1=1.5, attributes=attributes)
    return text.replace("min_reports = 1", f"min_reports = {ENOUGH}")


def _collect(store: Store, campaign: Campaign, chance: random.Random) -> dict[str, list[float]]:
    """Every device reports once a round; what they hold is returned as frequencies."""
    manifest, truth = campaign.manifest, {}
    devices: list[tuple[int, Randomiser, bytes]] = []
    for i, attribute in enumerate(manifest.attributes):
        draw = Randomiser(manifest.calibrations[i], chance.randbytes)
        held = [d * d % attribute.k for d in range(DEVICES[attribute.name])]
        devices += [(i, draw, draw.memoize(value)) for value in held]
        truth[attribute.name] = [held.count(v) / len(held) for v in range(attribute.k)]
    for number in range(SEALED + 1):
        reports = [
            Candidate(campaign.id, number, d + 1, i, 0, d, draw.report(memo))
            for d, (i, draw, memo) in enumerate(devices)
        ]
        store.commit(reports, [Refusal(campaign.id, number, Outcome.BAD_LENGTH)] * 2)
        if number < SEALED:
            rounds.seal(store, campaign, number, manifest.rounds.deadline(number))
    return truth

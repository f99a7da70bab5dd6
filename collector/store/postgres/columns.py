"""A batch as columns: what a round's table gets, in the order of its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.records import Candidate
from collector.store.postgres.counters import Round
from collector.store.postgres.reading import TAGS
from collector.store.shared import TallyKey

Column = npt.NDArray[np.int64]

_ROUND: Final = itemgetter(0, 1)  # of a `Candidate`


@dataclass(frozen=True, slots=True)
class Columns:
    """The reports of one round, each device once, by device."""

    key: Round
    devices: Column
    attributes: Column
    places: Column
    bodies: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices of one campaign, each once, in order, with their attributes."""

    campaign: int
    numbers: Column
    attributes: Column


def by_round(candidates: Sequence[Candidate]) -> Mapping[Round, Sequence[int]]:
    """Positions in a batch by campaign and round."""
    keys: list[Round] = list(map(_ROUND, candidates))
    if len(set(keys)) == 1:  # nearly always
        return {keys[0]: range(len(keys))}
    rounds: dict[Round, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        rounds[key].append(i)
    return rounds


def columns_of(
    candidates: Sequence[Candidate], rounds: Mapping[Round, Sequence[int]]
) -> list[Columns] | None:
    """The columns of every round, in order; None if a device is in one of them twice."""
    made = []
    for key, members in sorted(rounds.items()):
        whole = len(members) == len(candidates)
        found = _columns(key, candidates if whole else [candidates[i] for i in members])
        if found is None:
            return None
        made.append(found)
    return made


def _columns(key: Round, mine: Sequence[Candidate]) -> Columns | None:
    _, _, devices, attributes, pages, tags, bodies = zip(*mine)
    numbers = np.array(devices, dtype=np.int64)
    order = np.argsort(numbers)
    numbers = numbers[order]
    if not np.all(numbers[1:] != numbers[:-1]):
        return None
    places = np.array(pages, dtype=np.int64) * TAGS + np.array(tags, dtype=np.int64)
    sorted_bodies = [bodies[i] for i in order.tolist()]
    return Columns(key, numbers, np.array(attributes)[order], places[order], sorted_bodies)


def bodies_of(parts: Sequence[Columns]) -> dict[TallyKey, Sequence[bytes]]:
    """The bodies that belong into each tally."""
    found: dict[TallyKey, Sequence[bytes]] = {}
    for part in parts:
        attributes = np.unique(part.attributes).tolist()
        for attribute in attributes:
            mine = part.bodies
            if len(attributes) > 1:
                places = np.flatnonzero(part.attributes == attribute).tolist()
                mine = [part.bodies[i] for i in places]
            found[(*part.key, attribute)] = mine
    return found


def devices_of(parts: Sequence[Columns]) -> list[Devices] | None:
    """The devices of every campaign; None if one of them has two attributes."""
    groups: dict[int, list[Columns]] = defaultdict(list)
    for part in parts:
        groups[part.key[0]].append(part)
    found = [_devices(campaign, mine) for campaign, mine in sorted(groups.items())]
    return None if None in found else [each for each in found if each is not None]


def _devices(campaign: int, parts: Sequence[Columns]) -> Devices | None:
    if len(parts) == 1:
        return Devices(campaign, parts[0].devices, parts[0].attributes)
    every = np.concatenate([part.devices for part in parts])
    attributes = np.concatenate([part.attributes for part in parts])
    numbers, first, of = np.unique(every, return_index=True, return_inverse=True)
    if np.any(attributes != attributes[first][of]):
        return None
    return Devices(campaign, numbers, attributes[first])

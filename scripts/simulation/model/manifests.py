"""A manifest for one of the paper's data sets, to simulate with or to learn from."""

from __future__ import annotations

import json

from simulation.model import datasets
from simulation.model.population import attribute_name


def for_dataset(name: str, *, eps_inf: float, eps_1: float, rounds: int = 365) -> str:
    """TOML that asks for every attribute of a data set."""
    data = datasets.load(name)
    head = f"""\
# Made for the data set {data.title}. {data.note}
format = 1
slug = "{name.replace("_", "-")}"
title = "{data.title}"
purpose = "Simulate a fleet that holds the data set {data.title}"
owner = "The simulation"
contact = "nobody@example.org"
eps_inf = {eps_inf!r}
eps_1 = {eps_1!r}
min_reports = 50
receipt_pages = {max(1, data.n // 1000)}

[rounds]
first = 2027-01-01T00:00:00Z
period = "1d"
count = {rounds}
"""
    return head + "".join(_attribute(marginal) for marginal in data.attributes)


def _attribute(marginal: datasets.Marginal) -> str:
    values = json.dumps(marginal.values, ensure_ascii=False)
    return f"""
[[attributes]]
name = "{attribute_name(marginal.name)}"
question = "What is the {marginal.name}?"
values = {values}
"""

"""A manifest for one of the paper's data sets, to simulate with or to learn from."""

from __future__ import annotations

import json

from protocol_spec.ways import Reporting
from simulation.model import datasets
from simulation.model.population import attribute_name


def for_dataset(
    name: str,
    *,
    eps_inf: float,
    eps_1: float,
    rounds: int = 365,
    reporting: Reporting = "memoized",
) -> str:
    """TOML that asks for every attribute of a data set.

    With `once` eps_1 follows from eps_inf and is not written.
    """
    data = datasets.load(name)
    budget = f"eps_inf = {eps_inf!r}\n" + ("" if reporting == "once" else f"eps_1 = {eps_1!r}\n")
    head = f"""\
# Made for the data set {data.title}. {data.note}
format = 1
reporting = "{reporting}"
slug = "{name.replace("_", "-")}"
title = "{data.title}"
purpose = "Simulate a fleet that holds the data set {data.title}"
owner = "The simulation"
contact = "nobody@example.org"
{budget}min_reports = 50
receipt_pages = {max(1, data.n // 1000)}

[rounds]
first = 2027-01-01T00:00:00Z
period = "1d"
count = {rounds}
"""
    return head + "".join(_attribute(marginal) for marginal in data.attributes)


def _attribute(marginal: datasets.Marginal) -> str:
    values = json.dumps(marginal.values, ensure_ascii=False)
    last = json.dumps(marginal.values[-1], ensure_ascii=False)
    return f"""
[[attributes]]
name = "{attribute_name(marginal.name)}"
question = "What is the {marginal.name}?"
values = {values}
otherwise = {last}
"""

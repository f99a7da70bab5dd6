"""The pages about results, dashboards and privacy list every field, and their numbers are right."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest

from collector.records import Campaign
from collector.results.tables import COLUMNS
from collector.rounds.publishing import discovery, discovery_topic
from collector.rounds.results import round_result, summary
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome, Result, Topics, calibrate
from tests.support.campaigns import manifest
from tests.support.docs import (
    DASHBOARDS,
    PRIVACY,
    RESULTS,
    budgets,
    names_in,
    row_with,
    rows,
    section,
)


@pytest.fixture
def campaign() -> Campaign:
    return Campaign(1, manifest(), 0, None)


def test_every_column_of_export_in_order() -> None:
    assert names_in(section(RESULTS, "## Columns of export")) == list(COLUMNS)


def test_every_field_of_a_result_in_order() -> None:
    fields = [field.name for field in dataclasses.fields(Result)]
    assert names_in(section(RESULTS, "## The result message")) == ["v", *fields]


def test_every_key_of_a_result_in_json_in_order(campaign: Campaign) -> None:
    told = summary(campaign, round_result(campaign, 0, 0, None, {}))
    text = section(DASHBOARDS, "## Any MQTT dashboard")
    assert names_in(text) == list(told)
    topic = Topics(campaign.name).result_json("ATTRIBUTE").replace(campaign.name, "CAMPAIGN")
    assert topic in text


def test_every_sensor_of_home_assistant(campaign: Campaign) -> None:
    found = json.loads(discovery(campaign, Topics(campaign.name)))["components"].values()
    first = campaign.manifest.attributes[0].name
    names = [c["name"].replace(first, "ATTRIBUTE") for c in list(found)[:4]]
    text = section(DASHBOARDS, "## Home Assistant")
    assert sorted(names_in(text)) == sorted(names)
    shown = discovery_topic("homeassistant", campaign).replace(campaign.name, "CAMPAIGN")
    assert shown in text


def test_every_outcome_in_order() -> None:
    assert names_in(section(RESULTS, "## Outcomes")) == [str(outcome) for outcome in Outcome]


def test_every_table_of_the_database(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "collector.db").close()
    db = sqlite3.connect(tmp_path / "collector.db")
    tables = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    text = section(RESULTS, "## The database")
    for table in tables:
        if table.startswith(("_", "sqlite_")):
            continue
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        assert f"`{table}`" in text, table
        if any(row[0] == f"`{table}`" for row in rows(text)):
            assert row_with(text, f"`{table}`")[1] == ", ".join(f"`{c}`" for c in columns)
    db.close()


def test_the_privacy_statement_names_what_is_kept() -> None:
    text = section(PRIVACY, "## What the collector keeps")
    for table in ("report", "device", "tally", "result", "outcome", "revoked"):
        assert f"`{table}`" in text


def test_epsilon_over_time_is_what_the_code_says() -> None:
    for eps_inf, noise, cells in budgets(PRIVACY, "## What is promised"):
        assert cells[:5] == [f"{noise.epsilon_after(t):.3f}" for t in (1, 2, 3, 7, 30)]
        assert float(cells[5]) == eps_inf


def test_what_a_lie_weighs_is_what_the_code_says() -> None:
    for _, noise, cells in budgets(PRIVACY, "## What a dishonest device can do"):
        weights = ((1 - noise.qs) / noise.gap, noise.qs / noise.gap)
        assert cells == [f"{100 * w / n:.2f}" for w in weights for n in (200, 1000, 10_000)]


def test_the_floor_is_what_the_code_says() -> None:
    for eps_inf, drawn, cells in budgets(RESULTS, "## Pooled results"):
        noise = calibrate(drawn.protocol, k=drawn.k, eps_inf=eps_inf, eps_1=drawn.eps_1)
        variances = [noise.pooled_variance(1000, t, 0.1) for t in (1, 2, 7, 30, 90, 365, 10**9)]
        widths = [100 * 1.959964 * (v + 0.1 * 0.9 / 1000) ** 0.5 for v in variances]
        assert [cell.strip("*") for cell in cells] == [f"{w:.2f}" for w in widths]

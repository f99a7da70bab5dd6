"""What the pages about results, privacy and security state is what the code does and calculates."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sqlite3
from pathlib import Path

import pytest

from collector.brokers import auditor, authority, credentials
from collector.brokers.config import (
    AUDITOR,
    COLLECTOR,
    KINDS,
    RENEW_DAYS,
    Access,
    BrokerPlan,
    Kind,
    Role,
    access,
)
from collector.brokers.directory import BrokerDirectory
from collector.records import Campaign
from collector.results.tables import COLUMNS
from collector.rounds.publishing import discovery, discovery_topic
from collector.rounds.results import round_result, summary
from collector.store.sqlite import SqliteStore
from protocol_spec import Calibration, Outcome, Result, Topics, as_drawn, calibrate
from protocol_spec.topics import CANARY_CAMPAIGN, DEFAULT_NAMESPACE
from tests.support.campaigns import manifest
from tests.support.documents import name_of, names_in, read, row_with, rows, section
from tests.support.harness import ROOT

RESULTS = ROOT / "docs/results.md"
PRIVACY = ROOT / "docs/privacy.md"
DASHBOARDS = ROOT / "docs/dashboards.md"
SECURITY = ROOT / "docs/security.md"
BUDGET = re.compile(r"`eps_inf` ([\d.]+), `eps_1` ([\d.]+), (\d+) values \((L-\w+)\)")


def budgets(page: Path, heading: str) -> list[tuple[float, Calibration, list[str]]]:
    """Rows that begin with a budget: eps_inf, the noise as devices draw it, the other cells."""
    found = []
    for row in rows(section(page, heading)):
        said = BUDGET.fullmatch(row[0])
        if said:
            eps_inf, eps_1, k = float(said[1]), float(said[2]), int(said[3])
            noise = as_drawn(calibrate("ALLOMFREE", k=k, eps_inf=eps_inf, eps_1=eps_1))
            assert noise.protocol == said[4]
            found.append((eps_inf, noise, row[1:]))
    assert found, f"{name_of(page)} has no budgets below {heading}"
    return found


# --- results and privacy -------------------------------------------------------------------------


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


def test_the_floor_is_what_the_code_says() -> None:
    for eps_inf, drawn, cells in budgets(RESULTS, "## Pooled results"):
        noise = calibrate(drawn.protocol, k=drawn.k, eps_inf=eps_inf, eps_1=drawn.eps_1)
        variances = [noise.pooled_variance(1000, t, 0.1) for t in (1, 2, 7, 30, 90, 365, 10**9)]
        widths = [100 * 1.959964 * (v + 0.1 * 0.9 / 1000) ** 0.5 for v in variances]
        assert [cell.strip("*") for cell in cells] == [f"{w:.2f}" for w in widths]


# --- security -----------------------------------------------------------------------------------


def test_the_bound_on_a_lie() -> None:
    for _, noise, cells in budgets(SECURITY, "## Lies"):
        bounds = [f"{100 / (n * noise.gap):.2f}" for n in (200, 1000, 5000)]
        assert cells == [f"{noise.gap:.4f}", *bounds]


def test_the_worked_number_of_liars() -> None:
    c = as_drawn(calibrate("ALLOMFREE", k=5, eps_inf=2.0, eps_1=0.6))
    points = re.search(
        r"but (\d+) liars\s+who all name the same value lift it by (\d) points", text()
    )
    honest = re.search(r"and (\d+) honest devices that hold it by ([\d.]+)\.", text())
    assert points
    assert honest
    liars, wanted = int(points[1]), int(points[2]) / 100
    lift = (1 - c.qs) / (c.gap * 5000)
    assert (liars - 1) * lift < wanted <= liars * lift
    assert honest.groups() == (str(liars), f"{100 * liars / 5000:.1f}")


def text() -> str:
    return read(SECURITY)


def test_refusals_named_are_refusals() -> None:
    told = {name for row in rows(section(SECURITY, "## Lies")) for name in row[-1].split("`")[1::2]}
    assert told - {"devices"} <= {str(outcome) for outcome in Outcome}


def filters(cell: str) -> set[str]:
    found = re.findall(r"`([^`]+)`", cell)
    return {f"{DEFAULT_NAMESPACE}/v1/{f}" for f in found if "/" in f}


@pytest.mark.parametrize(
    ("who", "role", "name"),
    [
        ("a device", Role.DEVICE, "NAME"),
        (f"`{COLLECTOR}`", Role.COLLECTOR, COLLECTOR),
        (f"`{AUDITOR}`, used by `doctor` only", Role.AUDITOR, AUDITOR),
    ],
)
def test_least_privilege(who: str, role: Role, name: str) -> None:
    (row,) = (row for row in rows(section(SECURITY, "## The broker")) if row[0] == who)
    reads = row[2].split("; on mosquitto also")[0]
    told = Access(tuple(filters(row[1])), tuple(filters(reads)))
    real = access(role, name, DEFAULT_NAMESPACE)
    assert (set(told.write), set(told.read)) == (set(real.write), set(real.read))
    assert CANARY_CAMPAIGN in text()


def test_every_trial_of_doctor_is_told() -> None:
    """The sentences are the literals that `AccessProbe` passes to its trials."""
    calls = [
        n for n in ast.walk(ast.parse(inspect.getsource(auditor))) if isinstance(n, ast.Constant)
    ]
    lead = re.compile(r"(a device|a reader|nobody|the collector) [a-z' ]+")
    tried = {n.value for n in calls if isinstance(n.value, str) and lead.fullmatch(n.value)}
    told = {row[0] for row in rows(section(SECURITY, "## What doctor proves"))}
    both = "a device reads what is for everyone, and for itself"
    shortened = {"a device reads what is for everyone", "a device reads what is for itself"}
    assert shortened <= tried
    assert both in told
    assert tried - shortened - {"the collector publishes to everyone"} == told - {
        *("line", "---", both, "configuration", "listener", "sessions", "certificate")
    }


def test_lifetimes_of_certificates() -> None:
    told = " ".join(section(SECURITY, "## Renew").split())
    assert authority.SERVER_DAYS == 2 * 365
    assert authority.AUTHORITY_DAYS == 20 * 365
    assert authority.CLIENT_DAYS == 10 * 365
    assert "two years, the authority's twenty, a device's (with `--auth certificate`) ten" in told
    assert f"once fewer than {RENEW_DAYS} days are left" in told


def test_passwords_have_the_bits_that_are_told() -> None:
    assert len(credentials.new_password()) * 6 == 192
    assert "192 random bits" in text()


@pytest.mark.parametrize("kind", KINDS)
def test_every_secret_of_a_broker_is_listed_and_private(kind: Kind, tmp_path: Path) -> None:
    plan = BrokerPlan(kind, DEFAULT_NAMESPACE, ("localhost",), tmp_path / "broker")
    made = BrokerDirectory.configure(tmp_path / "broker", plan)
    made.enrol(["kitchen"])
    listed = " ".join(row[0] for row in rows(section(SECURITY, "## Secrets")))
    for path in made.path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        if path.suffix == ".key" or path.name in ("broker.json", "passwords", "users.conf"):
            assert path.name in listed, path
        if path.parent.name == "credentials":
            known = path.name.replace("kitchen", "NAME")
            assert f"`{known}`" in listed or f"credentials/{known}`" in listed, path

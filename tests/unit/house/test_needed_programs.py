"""Nothing is skipped in silence: a missing program is waited for, told, and fails a run in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

TESTS = """
import pytest
from tests.support.needs import need

def test_in_its_body():
    need("no-such-program")

@pytest.mark.needs("no-such-program")
def test_by_its_mark():
    raise AssertionError("must not run")

@pytest.fixture
def program():
    pytest.skip("a program is not installed")  # not through need

def test_in_a_fixture(program):
    raise AssertionError("must not run")

def test_for_another_reason():
    pytest.skip("only root can do that")

def test_that_runs():
    need("sh")
"""

INSTALLS = """
set -euo pipefail
say() { echo "==> $*"; }
sleep() { echo "waited"; }
id() { echo "${FAKE_USER:-0}"; }
source "$1/scripts/programs.sh"
venv=$2
system_packages="wanted-program wanted"
system_programs
echo "missing: ${missing[*]:-nothing}"
"""

# Another apt-get holds the lock of the lists at first; then a package is really installed.
APT = """#!/bin/sh
case "$*" in
  *"DPkg::Lock::Timeout=300"*) ;;
  *) echo "E: it does not wait for the lock of dpkg"; exit 100 ;;
esac
tries=$(dirname "$0")/tries; echo >> "$tries"
if [ "$(wc -l < "$tries")" -le {busy} ]; then
  echo "E: Could not get lock /var/lib/apt/lists/lock" >&2; exit 100
fi
case "$*" in *" install "*) cp "$0" "$(dirname "$0")/wanted-program" ;; esac
"""


def run_pytest(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    (directory / "test_needs.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(directory)]
    variables = {"CI": "", "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )


def test_a_missing_program_skips_and_the_last_lines_say_why(tmp_path: Path) -> None:
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 4 skipped" in done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("Skipped:")]
    assert "2 because no-such-program is not installed" in line
    assert "1 because a program is not installed" in line
    assert "1 because only root can do that" in line


def test_with_ci_a_missing_program_fails_and_other_reasons_do_not(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, CI="true")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 skipped, 2 errors" in done.stdout
    assert "no-such-program is not installed, and with CI=true every test must run" in done.stdout


def install(directory: Path, busy: int, user: str = "0") -> str:
    programs = directory / "bin"
    programs.mkdir()
    (programs / "apt-get").write_text(APT.replace("{busy}", str(busy)))
    (programs / "apt-get").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", INSTALLS, "bash", str(ROOT), str(directory / "venv")],
        env=os.environ | {"PATH": path, "FAKE_USER": user},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_busy_apt_get_is_waited_for(tmp_path: Path) -> None:
    shown = install(tmp_path, busy=3)
    assert shown.count("waited") == 3
    assert "missing: nothing" in shown


def test_what_cannot_be_installed_is_named_with_its_reason(tmp_path: Path) -> None:
    shown = install(tmp_path, busy=1000)
    assert "missing: wanted-program (apt-get: E: Could not get lock" in shown


def test_nobody_but_root_installs(tmp_path: Path) -> None:
    assert "missing: wanted-program (apt-get needs root)" in install(tmp_path, busy=0, user="1000")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """scripts/test beside commands that do nothing but say that they were called."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv").mkdir()
    text = (ROOT / "scripts/test").read_text()
    (tmp_path / "scripts/test").write_text(text)
    (tmp_path / "scripts/environment.sh").write_text(
        f"root={tmp_path} venv={tmp_path}/.venv\n"
        "make_environment() { :; }\n"
        'say() { echo "==> $*"; }\n'
        'fail() { echo "error: $*" >&2; exit 1; }\n'
        'ruff() { [ "$1" != "${BROKEN:-}" ]; }\n'
        'mypy() { echo "a wrong type"; return "${TYPES:-0}"; }\n'
        'pytest() { echo "pytest $*"; return "${RESULT:-0}"; }\n'
    )
    return tmp_path


def run_script(checkout: Path, missing: str, *words: str, **variables: str) -> tuple[int, str]:
    (checkout / "scripts/programs.sh").write_text(
        f"missing=({missing})\nsystem_programs() {{ :; }}\naccessibility_rules() {{ :; }}\n"
        "javascript_packages() { :; }\n"
    )
    done = subprocess.run(
        ["bash", str(checkout / "scripts/test"), *words],
        env=os.environ | {"CI": ""} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_script_fails_in_ci_when_a_program_is_missing(checkout: Path) -> None:
    code, shown = run_script(checkout, '"chromium (apt-get: busy)"', CI="true")
    assert code == 1
    assert "not installed: chromium (apt-get: busy)" in shown
    assert "pytest" not in shown


def test_the_script_ends_with_what_is_missing(checkout: Path) -> None:
    missing = '"chromium (apt-get: busy)" "node (none)"'
    code, shown = run_script(checkout, missing, RESULT="0")
    assert code == 0
    assert shown.splitlines()[-1].endswith("chromium (apt-get: busy);node (none)")
    code, shown = run_script(checkout, missing, RESULT="1")
    assert code == 1
    assert shown.splitlines()[-1].endswith("chromium (apt-get: busy);node (none)")


def test_the_script_fails_for_a_wrong_type_after_the_tests(checkout: Path) -> None:
    code, shown = run_script(checkout, "", TYPES="1")
    assert code == 1
    assert shown.splitlines()[-1] == "a wrong type"
    assert shown.index("pytest --numprocesses") < shown.index("a wrong type")
    code, shown = run_script(checkout, "")
    assert code == 0
    assert "a wrong type" not in shown


def test_the_script_hands_on_its_arguments(checkout: Path) -> None:
    code, shown = run_script(checkout, "", "--quick", "--", "-k", "wire", CI="true", WORKERS="3")
    assert code == 0
    assert "-m not slow -k wire" in shown
    assert "--durations=15" in shown
    assert "--numprocesses 3" in shown


@pytest.mark.parametrize("broken", ["format", "check"])
def test_the_script_stops_at_what_ruff_finds(checkout: Path, broken: str) -> None:
    code, shown = run_script(checkout, "", BROKEN=broken)
    assert code == 1
    assert "pytest" not in shown

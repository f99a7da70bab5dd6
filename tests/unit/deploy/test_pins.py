"""S1: what is installed is what was checked: every file by its hash, from wherever it comes."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supply import pins
from supply.needed import SETS, closure
from tests.support.places import ROOT

each = pytest.mark.parametrize("name", SETS)
PAGE = """<html><body>
<a href="../files/wood-1.0-py3-none-any.whl#sha256={a}">a</a>
<a href="../files/wood-1.0-cp311-cp311-manylinux_2_28_aarch64.whl#sha256={b}">b</a>
<a href="../files/wood-1.0.tar.gz#sha256={c}">c</a>
<a href="../files/wood-1.0-cp311-cp311-win_amd64.whl#sha256={d}">other machines</a>
<a href="../files/wood-1.0-cp39-cp39-manylinux_2_28_x86_64.whl#sha256={d}">other Pythons</a>
<a href="../files/wood-1.1-py3-none-any.whl#sha256={d}">other versions</a>
<a href="../files/wood-1.0-py3-none-any.whl">without a hash</a>
</body></html>"""


@each
def test_a_list_is_complete_and_of_the_tested_versions(name: str) -> None:
    """If this fails: python scripts/supply_chain.py pin --index URL"""
    found, tested = pins.read(name), pins.versions()
    assert found.keys() == closure(name).keys()
    assert {package: version for package, (version, _) in found.items()} == {
        package: tested[package] for package in found
    }


@each
def test_a_list_names_files_and_no_host(name: str) -> None:
    found = pins.read(name)
    for package, (_, hashes) in found.items():
        assert hashes, package
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes), package
    text = (pins.DIRECTORY / f"{name}.txt").read_text(encoding="utf-8")
    assert text == pins.text(found), "by hand? Then pip may read more in it than is seen here"
    assert "//" not in text
    assert "--index" not in text.replace(pins.HEAD, "")


def test_hashes_come_from_the_index_for_our_machines_only() -> None:
    digests = {letter: hashlib.sha256(letter.encode()).hexdigest() for letter in "abcd"}
    asked = []

    def fetch(url: str) -> str:
        asked.append(url)
        return PAGE.format(**digests)

    found = pins.hashes("wood", "1.0", "https://index.example/simple/", fetch)
    assert asked == ["https://index.example/simple/wood/"]
    assert found == sorted(digests[letter] for letter in "abc")
    with pytest.raises(LookupError, match=r"no file of wood 2\.0"):
        pins.hashes("wood", "2.0", "https://index.example/simple", fetch)


def test_our_scripts_install_only_what_is_listed() -> None:
    script = (ROOT / "scripts" / "environment.sh").read_text(encoding="utf-8")
    installs = [line for line in script.splitlines() if "pip install" in line or "{pip[@]}" in line]
    assert len(installs) == 3
    assert "--no-deps" in installs[0]
    assert "--require-hashes --only-binary :all:" in installs[1]
    assert "--no-index --no-build-isolation" in installs[2]


def test_pip_refuses_a_file_that_was_changed(tmp_path: Path) -> None:
    """The list as pip reads it, and a wheel that is not the one that was pinned."""
    wheel = tmp_path / "click-8.5.1-py3-none-any.whl"
    wheel.write_bytes(b"not the one")
    version, hashes = pins.read("edge")["click"]
    only = tmp_path / "only.txt"
    only.write_text(pins.text({"click": (version, hashes)}), encoding="utf-8")
    wheel.rename(tmp_path / f"click-{version}-py3-none-any.whl")
    words = ("download", "--no-deps", "--no-index", "--require-hashes", "--find-links", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--dest", tmp_path / "out", "-r", only],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"},
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr

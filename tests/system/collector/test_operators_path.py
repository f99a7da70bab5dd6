"""README's way for operators, as it is written there: pasted into a shell with an empty home.

Only the lines that install are left out: the programs are those of this environment. Rounds are
shorter, and devices fewer, by the variables that are documented for that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.documents import PAGES, blocks, name_of, read
from tests.support.edge_processes import environment
from tests.support.harness import ROOT

README = ROOT / "README.md"
INSTALLS = re.compile(r"^(python3 -m venv|\. \S+/bin/activate|pip install).*\n", re.MULTILINE)
# A network of its own, so that the ports of README are free; its loopback must be switched on.
LOOPBACK = "import fcntl, socket, struct as s; fcntl.ioctl(socket.socket(), 0x8914, s.pack('16sh', b'lo', 65))"  # noqa: E501
WAITS = "until allomfree-collector health > /dev/null; do sleep 0.2; done\n"


def pasted() -> tuple[str, str, str]:
    """The trial, the way for real, and the check at the end."""
    part = read(README).partition("**Collect on a broker**")[2].partition("**Simulate fleets**")[0]
    trial, real, check = blocks(part, "sh")
    return trial, real, check


@pytest.mark.slow
def test_as_it_is_written(tmp_path: Path) -> None:
    trial, real, check = (INSTALLS.sub("", block) for block in pasted())
    script = f"set -eu\n{trial}wait || true\n{real}{WAITS}{check}kill %%\nwait || true\n"
    done = in_an_empty_home(tmp_path, script)
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    assert "(a TRIAL)" in told
    assert re.search(r"\S estimate +\[ \] 95 % interval", told), told
    assert "<svg" in (tmp_path / "trial.svg").read_text()
    assert "other machines reach it at mqtts://" in (tmp_path / "collector.log").read_text()
    assert told.count("ok    ") > 20
    assert "FAIL" not in told
    assert "nobody connects without a credential: refused" in told


def in_an_empty_home(place: Path, script: str) -> subprocess.CompletedProcess[str]:
    """In a directory that looks like a checkout; what runs on in the background ends with it."""
    for name in ("docs", "scripts"):
        (place / name).symlink_to(ROOT / name)
    names = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as home:
        variables = {
            "HOME": home,
            "PATH": f"{names}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ALLOMFREE_TRIAL_ROUND": "6s",
            "ALLOMFREE_TRIAL_DEVICES": "20",
        }
        (place / "pasted.sh").write_text(script)
        return subprocess.run(
            [*alone(), "bash", "pasted.sh"], cwd=place, env=environment(variables), text=True,
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip


def alone() -> list[str]:
    """Where the system allows it, without any other program's ports."""
    prefix = [
        "unshare",
        "--net",
        "--",
        "bash",
        "-c",
        f'{sys.executable} -c "{LOOPBACK}" && "$@"',
        "-",
    ]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else []


def test_what_is_installed_is_there() -> None:
    """Every extra that is named exists, in an environment of its own (PEP 668), from the source."""
    head = read(README).partition("**Run agents on a Raspberry Pi")[0]
    assert ". ~/allomfree/bin/activate" in blocks(head, "sh")[-1]
    extras = re.findall(r"(?m)^(\w+) = \[", (ROOT / "pyproject.toml").read_text())
    for block in pasted():
        for named in re.findall(r"pip install '\.\[([a-z,]+)\]'", block):
            assert set(named.split(",")) <= set(extras)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nobody_is_told_to_install_from_an_index(page: Path) -> None:
    """Where the package is not: somebody else could take its name there."""
    assert not re.search(r"pip(x)? install\s+'?allomfree", read(page))

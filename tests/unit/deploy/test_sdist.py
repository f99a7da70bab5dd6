"""The source distribution holds what its pages tell people to type and install."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from supply import sdist
from tests.support.places import ROOT


@pytest.mark.slow
def test_every_file_that_git_knows_is_in_it(tmp_path: Path) -> None:
    made = sdist.build(tmp_path)
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True
    )
    known = {name for name in done.stdout.splitlines() if not name.startswith(".")}
    assert {"deploy/prometheus-alerts.yaml", "deploy/allomfree-edge.service"} <= names
    assert known <= names

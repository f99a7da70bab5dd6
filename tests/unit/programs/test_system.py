"""Files of both programs: private, whole or not at all, and there after a power cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol_spec.programs.system import (
    create_durably,
    exposed_mode,
    holder,
    make_private_directory,
    open_private,
    overwrite,
    synchronised,
    synchronised_by_child,
    try_lock,
    write_durably,
)
from tests.support.harness import path_of


@pytest.mark.parametrize("mask", [0o000, 0o277], ids=["open umask", "strict umask"])
def test_only_the_owner_can_read_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        directory = tmp_path / "private"
        make_private_directory(directory)
        write_durably(directory / "written", "a")
        create_durably(directory / "created", "b")
        overwrite(directory / "overwritten", b"c")
        os.close(open_private(directory / "opened", os.O_RDWR))
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert exposed_mode(directory) is None


def test_the_mode_of_existing_files_is_kept_and_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    make_private_directory(tmp_path)
    assert exposed_mode(tmp_path) == 0o750


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_durably(tmp_path / "taken", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    (tmp_path / ".file.new").write_text("half")  # of a process that was killed
    write_durably(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"
    create_durably(tmp_path / "file", "second")
    assert (tmp_path / "file").read_text() == "whole"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "taken"}


def test_overwriting_keeps_the_file_in_place(tmp_path: Path) -> None:
    overwrite(tmp_path / "file", b"first record")
    inode = (tmp_path / "file").stat().st_ino
    overwrite(tmp_path / "file", b"later")
    assert (tmp_path / "file").read_bytes() == b"later record"
    assert (tmp_path / "file").stat().st_ino == inode


def test_file_and_directory_are_synced_around_the_rename(tmp_path: Path) -> None:
    """Or a power cut could leave an empty file under the right name, or no name at all."""
    code = f"""
from pathlib import Path
from protocol_spec.programs.system import write_durably
write_durably(Path({str(tmp_path / "file")!r}), "content")
"""
    trace = tmp_path / "trace"
    calls = "trace=fsync,rename,renameat,renameat2"
    command = [path_of("strace"), "-f", "-e", calls, "-o", str(trace), sys.executable, "-c", code]
    subprocess.run(command, check=True)
    lines = trace.read_text().splitlines()
    steps = [line.split(maxsplit=1)[1].partition("(")[0] for line in lines if "(" in line]
    assert [step[:6] for step in steps] == ["fsync", "rename", "fsync"]


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    held = try_lock(tmp_path / "lock")
    assert held is not None
    assert try_lock(tmp_path / "lock") is None
    assert holder(tmp_path / "lock") == str(os.getpid())
    os.close(held)
    again = try_lock(tmp_path / "lock")
    assert again is not None
    os.close(again)
    (tmp_path / "empty").touch()
    assert {holder(tmp_path / name) for name in ("empty", "nosuch")} == {"unknown"}


SMALL = """
import sys
from protocol_spec.programs.system import *
synchronised_by_child()
assert "ctypes" not in sys.modules
"""
LAZY = """
import sys
from protocol_spec.programs.mqtt import lazy_import
finders = list(sys.meta_path)
with lazy_import("xmlrpc.client"):
    import xmlrpc.client
assert sys.meta_path == finders
assert "http.client" not in sys.modules  # neither of paho nor of this
assert xmlrpc.client.Fault
assert "http.client" in sys.modules
with lazy_import("json.tool"):
    import html.entities  # another one is loaded as usual
assert html.entities.__spec__.loader.__class__.__name__ == "SourceFileLoader"
"""


def test_the_kernel_reports_whether_the_clock_is_synchronised() -> None:
    assert synchronised() in (True, False, None)
    assert synchronised_by_child() is synchronised()


@pytest.mark.parametrize("code", [SMALL, LAZY], ids=["clock", "lazy import"])
def test_an_agent_loads_no_module_before_it_is_used(code: str) -> None:
    """F8: it is to stay small."""
    subprocess.run([sys.executable, "-c", code], check=True)

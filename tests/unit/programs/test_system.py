"""Files of both programs: private, whole or not at all, and there after a power cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(params=[0o000, 0o277], ids=["open umask", "strict umask"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_whatever_the_umask_only_the_owner_can_read(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    make_private_directory(directory)
    write_durably(directory / "written", "a")
    create_durably(directory / "created", "b")
    overwrite(directory / "overwritten", b"c")
    os.close(open_private(directory / "opened", os.O_RDWR))
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert exposed_mode(directory) is None


def test_a_file_that_others_can_read_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(mode=0o640)
    assert exposed_mode(file) == 0o640


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_durably(tmp_path / "taken", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_creating_keeps_what_is_there(tmp_path: Path) -> None:
    create_durably(tmp_path / "file", "first")
    create_durably(tmp_path / "file", "second")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "first")]


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


# --- Whether something keeps the clock right: the kernel's answer, asked here or by a child.


def test_a_child_says_the_same() -> None:
    assert synchronised() in (True, False, None)
    assert synchronised_by_child() is synchronised()


def test_asking_by_a_child_leaves_nothing_behind() -> None:
    """An agent asks, and is to stay small (F8)."""
    code = (
        "import sys; from protocol_spec.programs.system import *; "
        "synchronised_by_child(); print('ctypes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- A module that was put off is there when it is used, and nothing else is changed.


CODE = """
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
    import html.entities  # another is as ever
assert html.entities.__spec__.loader.__class__.__name__ == "SourceFileLoader"
print("done")
"""


def test_it_is_loaded_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr

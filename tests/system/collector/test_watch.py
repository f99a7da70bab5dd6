"""`status --watch` on a real terminal: shown again when something changes, ended by Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

from collector.data_dir import open_store
from protocol_spec import Manifest
from testbed.processes import command_of, environment
from tests.support.campaigns import manifest_text
from tests.support.collector import candidate

CLEAR = b"\x1b[2J\x1b[H"
PATIENCE = 60.0


def read_until(terminal: int, wanted: bytes, seen: bytes = b"") -> bytes:
    """What the terminal shows up to and with some text."""
    until = time.monotonic() + PATIENCE
    while wanted not in seen:
        assert time.monotonic() < until, seen
        seen += os.read(terminal, 4096)
    return seen


def test_a_change_is_shown_in_place_of_what_was_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with closing(open_store(data)) as store:
        made = store.open_campaign(Manifest.from_toml(manifest_text()), int(time.time()))
        ours, theirs = pty.openpty()
        words = ("status", "--watch", "--data-dir", data)
        command = command_of("allomfree-collector", *words)
        watching = subprocess.Popen(
            command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment()
        )
        os.close(theirs)
        try:
            seen = read_until(ours, b"0 sealed")
            assert seen.startswith(CLEAR)
            assert b"accepted" not in seen
            store.commit([candidate(made, 1)], [])
            seen = read_until(ours, b"counted in its round")
            assert seen.count(CLEAR) == 1
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE) == 0
        finally:
            watching.kill()
            watching.wait()
            os.close(ours)

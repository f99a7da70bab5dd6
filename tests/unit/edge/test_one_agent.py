"""One agent at a time on a state directory; the lock ends with the process, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.errors import StateBusy
from edge_client.store import Store

HOLD = """
import sys
from pathlib import Path
from edge_client.store import Store
store = Store(Path(sys.argv[1]), exclusive=True)
print("held", flush=True)
sys.stdin.read()
"""


def hold(state: Path) -> subprocess.Popen[str]:
    """Another process that has taken the store, and waits."""
    command = [sys.executable, "-c", HOLD, str(state)]
    holder = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_agent_in_this_process_is_refused(state: Path) -> None:
    with Store(state, exclusive=True):
        with pytest.raises(StateBusy, match=f"process {os.getpid()}.*nothing was drawn or sent"):
            Store(state, exclusive=True)
        Store(state, exclusive=False).close()  # looking is allowed
    Store(state, exclusive=True).close()


def test_a_second_agent_in_another_process_is_refused_until_the_first_dies(state: Path) -> None:
    with hold(state) as holder:
        with pytest.raises(StateBusy, match=f"process {holder.pid}") as refused:
            Store(state, exclusive=True)
        assert str(state) in str(refused.value)
        holder.kill()
        holder.wait()
        Store(state, exclusive=True).close()


def test_a_refused_agent_leaves_the_lock_to_its_holder(state: Path) -> None:
    with Store(state, exclusive=True):
        for _ in range(2):
            with pytest.raises(StateBusy):
                Store(state, exclusive=True)

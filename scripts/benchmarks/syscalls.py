"""What a process wrote, synced and sent, in order, as strace saw it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CALLS: Final = "pwrite64,write,fdatasync,fsync,sendto"
_LINE: Final = re.compile(r"(?:\d+ +)?(\w+)\(\d+<(.*?)>(.*)", re.DOTALL)
_ENDED: Final = ("+++ exited with", "+++ killed by")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its name, the file or socket, and the rest of the line with the bytes decoded."""

    name: str
    where: str
    rest: str

    @property
    def is_sync(self) -> bool:
        """Whether the disk had to confirm."""
        return self.name in ("fsync", "fdatasync")


def why_not() -> str:
    """Why strace cannot be used here, or empty."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


def traced(command: list[str], output: Path) -> list[str]:
    """The command under strace, which keeps its process id (-D: the tracer stands aside)."""
    options = ["-D", "-f", "-y", "-xx", "-s", "100000", "-e", f"trace={CALLS}", "-o", str(output)]
    return ["strace", *options, *command]


def calls(output: Path, timeout: float = 30.0) -> list[Call]:
    """All calls, once the traced process has ended and strace has written everything."""
    limit = time.monotonic() + timeout
    while not output.exists() or not any(e in output.read_text()[-200:] for e in _ENDED):
        if time.monotonic() > limit:
            raise TimeoutError(f"strace did not finish {output}")
        time.sleep(0.02)
    lines = output.read_text(encoding="ascii").splitlines()
    found = (_LINE.fullmatch(_decoded(line)) for line in lines)
    return [Call(*match.groups()) for match in found if match]


def first(trace: list[Call], name: str, where: str, content: bytes = b"", *, after: int = 0) -> int:
    """Index of the first such call, from `after` on; `where` may be the end of a path."""
    wanted = content.decode("latin-1")
    for index, call in enumerate(trace[after:], start=after):
        if call.name == name and where in call.where and wanted in call.rest:
            return index
    raise LookupError(f"no {name} of {where}")


def syncs(trace: list[Call], start: int, stop: int) -> int:
    """How many confirmations of the disk were waited for in between."""
    return sum(call.is_sync for call in trace[start:stop])


def _decoded(line: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda hexed: chr(int(hexed[1], 16)), line)

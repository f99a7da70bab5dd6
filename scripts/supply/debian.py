"""Debian packages of agent and collector, for Debian 12 and Raspberry Pi OS of the same age.

Debian's own msgpack, paho and numpy are older than what is needed and tested, so each package
brings its libraries: the very files of the pinned versions, as a virtual environment below /usr/lib
over the system's Python. Each is compared with the hash that its wheel gave for it. The agent's are
used in pure Python, so that one package serves every architecture.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from supply import debian_files
from supply.debian_files import PYTHON, Package
from supply.needed import ROOT
from supply.pins import read
from supply.wheel import environment

PLOTLY: Final = ("__init__.py", "package_data")


class CannotBuild(Exception):
    """Why no package can be made here, and what to do."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """The files of a package, where they will be installed."""

    root: Path
    package: Package

    @property
    def home(self) -> Path:
        return self.root / "usr/lib" / self.package.name

    @property
    def site(self) -> Path:
        return self.home / f"lib/python{PYTHON}/site-packages"

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)


def build(
    directory: Path,
    package: Package,
    wheel: Path,
    compression: str = "xz",
    *,
    root: Path = ROOT,
    compiled: bool = True,
) -> Path:
    """Build one package from the project's wheel into a directory; returns the file."""
    _check_tools()
    with TemporaryDirectory(prefix="allomfree-deb-") as name:
        tree = _Tree(Path(name) / "tree", package)
        _own_files(tree, wheel)
        for library, (version, _) in sorted(read(package.requirements).items()):
            _copy_library(tree.site, library, version, package.pure)
        _environment(tree)
        for path, text in debian_files.installed(package, root).items():
            tree.write(path, text)
        if compiled:
            _compile(tree.site)
        size = sum(p.stat().st_size for p in tree.root.rglob("*") if p.is_file()) // 1024
        version = _version(root)
        for path, (text, mode) in debian_files.control(package, version, _arch(package), size):
            tree.write(f"DEBIAN/{path}", text, mode)
        _settle_modes(tree.root)
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{package.name}_{version}_{_arch(package)}.deb"
        _pack(tree.root, file, compression, root)
        return file


def _check_tools() -> None:
    if shutil.which("dpkg-deb") is None:
        raise CannotBuild("dpkg-deb is not installed: build on Debian, or apt-get install dpkg")
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        raise CannotBuild(
            f"the packages are for Python {PYTHON}, and this is {sys.version.split()[0]}: build "
            "them on Debian 12, or set PYTHON and remove .venv"
        )


def _own_files(tree: _Tree, built: Path) -> None:
    """What of the wheel the program needs: a device gets no collector."""
    tree.site.mkdir(parents=True)
    with zipfile.ZipFile(built) as wheel:
        for name in wheel.namelist():
            top = name.partition("/")[0]
            if top in tree.package.parts or top.endswith(".dist-info"):
                wheel.extract(name, tree.site)


def _copy_library(site: Path, name: str, version: str, pure: bool) -> None:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise CannotBuild(f"{name} is not installed here; run ./scripts/test once") from None
    if found.version != version:
        raise CannotBuild(
            f"{name} {found.version} is installed, and {version} is pinned; run ./scripts/test once"
        )
    for file in found.files or ():
        if _wanted(name, file) and not (pure and file.suffix == ".so"):
            _copy_recorded(found, file, site)


def _wanted(name: str, file: PackagePath) -> bool:
    """Not what pip made when it installed, not a library's tests, and of plotly its script alone:
    nothing imports the rest, and it is larger than everything else but numpy."""
    if file.suffix == ".pyc" or "tests" in file.parts:
        return False
    if ".." in file.parts:  # a program for bin/, as NATS is; not a script for another Python
        return not Path(str(file.locate())).read_bytes().startswith(b"#!")
    top = file.parts[0]
    return name != "plotly" or top.endswith(".dist-info") or file.parts[1] in PLOTLY


def _copy_recorded(found: Distribution, file: PackagePath, site: Path) -> None:
    source, target = Path(str(found.locate_file(file))), Path(os.path.normpath(site / file))
    content = source.read_bytes()
    if file.hash is not None:
        digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest())
        if digest.rstrip(b"=").decode() != file.hash.value:
            raise CannotBuild(f"{source} is not as its wheel had it; remove .venv and try again")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755 if os.access(source, os.X_OK) and target.suffix != ".so" else 0o644)


def _environment(tree: _Tree) -> None:
    """A virtual environment is a file, a link and a directory of packages."""
    name, home = tree.package.name, f"/usr/lib/{tree.package.name}"
    module = tree.package.module
    system = str(tree.package.pure).lower()  # for what Debian compiled, such as signatures
    tree.write(
        f"usr/lib/{name}/pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = {system}\n"
    )
    tree.write(
        f"usr/lib/{name}/bin/{name}",
        f"#!{home}/bin/python -I\nfrom {module}.__main__ import main\n\nmain()\n",
        0o755,
    )
    (tree.home / "bin/python").symlink_to("/usr/bin/python3")
    (tree.root / "usr/bin").mkdir(parents=True)
    (tree.root / "usr/bin" / name).symlink_to(f"../lib/{name}/bin/{name}")


def _compile(site: Path) -> None:
    """Nobody but root may write there later; what is compiled depends on no file's time."""
    words = ("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
    place = ("-s", str(site), "-p", f"/usr/lib/{site.parents[2].name}")
    subprocess.run([sys.executable, *words, *place, str(site)], check=False, env=_plain())


def _plain() -> dict[str, str]:
    """Compiled files beside their sources, as they are installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}


def _settle_modes(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def _pack(tree: Path, file: Path, compression: str, root: Path) -> None:
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", str(tree), str(file)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(root),
    )


def _arch(package: Package) -> str:
    if package.pure:
        return "all"
    done = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _version(root: Path) -> str:
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return text.partition('\nversion = "')[2].partition('"')[0]

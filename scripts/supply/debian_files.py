"""The texts of a Debian package: control, scripts, unit, configuration, documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Final

PYTHON: Final = "3.11"  # of Debian 12
NEXT: Final = "3.12"


@dataclass(frozen=True, slots=True)
class Package:
    """One program as a package. `pure`: its libraries are used without what was compiled."""

    name: str
    module: str
    requirements: str
    parts: tuple[str, ...]
    summary: str
    about: str
    configuration: str
    documents: tuple[str, ...]
    needs: str = ""
    recommends: str = ""
    pure: bool = False


PACKAGES: Final = {
    "edge": Package(
        "allomfree-edge",
        "edge_client",
        "edge",
        ("protocol_spec", "edge_client"),
        "agent that reports to campaigns under local differential privacy",
        "It draws its answer with noise once, remembers it for life, and shows its owner exactly "
        "what leaves the device. It needs no compiled library, so this package is for every "
        "architecture, 32-bit Raspberry Pis included.",
        "# See /usr/share/doc/allomfree-edge/edge.toml.example for everything that can be set.\n"
        'state_dir = "/var/lib/allomfree-edge"\n',
        ("edge.toml.example",),
        recommends="python3-cryptography",  # signatures of manifests
        pure=True,
    ),
    "collector": Package(
        "allomfree-collector",
        "collector",
        "collector",
        ("protocol_spec", "collector"),
        "collector of statistics from fleets under local differential privacy",
        "It counts every noisy report exactly once and publishes histograms with error bars, over "
        "its embedded broker or one of yours. Alert rules and a dashboard are among its documents.",
        "# See /usr/share/doc/allomfree-collector/collector.toml.example for everything that can "
        'be set.\ndata_dir = "/var/lib/allomfree-collector"\n',
        (
            "collector.toml.example",
            "grafana-dashboard.json",
            "mosquitto-allomfree.conf",
            "prometheus-alerts.yaml",
        ),
        needs=", libstdc++6",
    ),
}

POSTINST: Final = """#!/bin/sh
# Nothing is started here: the owner or operator configures it first, and starts it then.
set -e
if [ "$1" = configure ] && [ -z "$DPKG_ROOT" ]; then
  if ! getent passwd @NAME@ > /dev/null; then
    useradd --system --user-group --home-dir /var/lib/@NAME@ --no-create-home \\
      --shell /usr/sbin/nologin @NAME@
  fi
  install -d -m 0700 -o @NAME@ -g @NAME@ /var/lib/@NAME@
  chgrp @NAME@ /etc/allomfree/@FILE@
  chmod 0640 /etc/allomfree/@FILE@
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart @NAME@.service
  fi
fi
"""

PRERM: Final = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
  systemctl disable --now @NAME@.service
fi
"""

POSTRM: Final = """#!/bin/sh
# What was remembered or counted is left: it cannot be made again.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "$1" = purge ] && [ -d "$DPKG_ROOT/var/lib/@NAME@" ]; then
  echo "/var/lib/@NAME@ was left; remove it if nothing in it is needed any more."
fi
"""


def installed(package: Package, root: Path) -> dict[str, str]:
    """Texts by the path they are installed at: unit, configuration, documents."""
    name, deploy, place = package.name, root / "deploy", f"usr/share/doc/{package.name}"
    unit = (deploy / f"{name}.service").read_text(encoding="utf-8")
    unit = unit.replace("/opt/allomfree/bin/", "/usr/bin/")
    unit = unit.replace("See README.md beside this file for how to install it.", f"See {place}.")
    texts = {document: (deploy / document).read_text() for document in package.documents}
    texts |= {name: (root / name).read_text() for name in ("CHANGELOG.md", "README.md")}
    texts["sbom.cdx.json"] = (deploy / "sbom.cdx.json").read_text(encoding="utf-8")
    texts["copyright"] = _copyright(root)
    return {
        f"lib/systemd/system/{name}.service": unit,
        f"etc/allomfree/{_file(package)}": package.configuration,
        **{f"{place}/{document}": text for document, text in texts.items()},
    }


def _copyright(root: Path) -> str:
    own = (root / "LICENSE").read_text(encoding="utf-8")
    return (
        f"{own}\nThe libraries in this package are under licences of their own: each is in the "
        "*.dist-info directory beside the library,\nand sbom.cdx.json beside this file lists "
        "them.\n"
    )


def control(
    package: Package, version: str, architecture: str, kibibytes: int
) -> Iterator[tuple[str, tuple[str, int]]]:
    """The control files, each with its text and mode."""
    fields = {
        "Package": package.name,
        "Version": version,
        "Architecture": architecture,
        "Maintainer": "allomfree contributors <allomfree@example.org>",
        "Installed-Size": str(kibibytes),
        "Depends": f"python3 (>= {PYTHON}), python3 (<< {NEXT}), passwd{package.needs}",
        "Recommends": package.recommends,
        "Section": "net",
        "Priority": "optional",
        "Description": "\n ".join([package.summary, *wrap(package.about, 78)]),
    }
    lines = [f"{name}: {value}\n" for name, value in fields.items() if value]
    yield "control", ("".join(lines), 0o644)
    yield "conffiles", (f"/etc/allomfree/{_file(package)}\n", 0o644)
    for name, text in (("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)):
        filled = text.replace("@NAME@", package.name).replace("@FILE@", _file(package))
        yield name, (filled, 0o755)


def _file(package: Package) -> str:
    return package.name.removeprefix("allomfree-") + ".toml"

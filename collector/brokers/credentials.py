"""One name's credential as files, to be carried to its device or kept for one of our own.

credentials/NAME/password             or client.crt and client.key
credentials/NAME/ca.crt               what to trust; absent where the system trusts it already
credentials/NAME/edge.toml            the device's configuration (collector.toml for our own,
                                      reader.toml for a reader)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from collector.brokers.access import COLLECTOR, READER
from collector.brokers.plan import BrokerPlan, Pair
from protocol_spec.programs.address import Credentials
from protocol_spec.programs.private_files import write_durably

ON_DEVICE: Final = Path("/etc/allomfree")
STATE_ON_DEVICE: Final = Path("/var/lib/allomfree-edge")
_FILES: Final = {
    "password_file": "password",
    "ca_file": "ca.crt",
    "cert_file": "client.crt",
    "key_file": "client.key",
}


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """The directory of one name's credential."""

    name: str
    directory: Path

    @property
    def certificate(self) -> Pair:
        """Where a client certificate and its key are."""
        return Pair(self.directory / "client.crt", self.directory / "client.key")

    def write_password(self, password: str) -> None:
        """Keep a password until it is carried to its device."""
        write_durably(self.directory / "password", f"{password}\n")

    def paths(self) -> dict[str, Path]:
        """The files that exist, by the setting that names each."""
        found = {setting: self.directory / file for setting, file in _FILES.items()}
        return {setting: file for setting, file in found.items() if file.exists()}

    def read(self) -> Credentials:
        """The credential, for a connection from this machine."""
        paths = self.paths()
        secret = paths.pop("password_file", None)
        password = None if secret is None else secret.read_text(encoding="utf-8").strip()
        files = {setting: str(file) for setting, file in paths.items()}
        return Credentials(self.name, password, **files)

    def trust(self, trusted: Path) -> None:
        """Copy the authority that the broker's certificate is checked with, if there is one."""
        copy = self.directory / "ca.crt"
        if trusted.exists():
            write_durably(copy, trusted.read_bytes())
        else:
            copy.unlink(missing_ok=True)

    def write_configuration(self, plan: BrokerPlan) -> None:
        """Write the configuration that goes with the credential."""
        if self.name == COLLECTOR:
            lines = [f'broker = "{plan.url}"', f'namespace = "{plan.namespace}"']
            if plan.home_assistant:
                lines.append(f'home_assistant = "{plan.home_assistant}"')
            streams = plan.streams(plan.url.host)
            if streams is not None:
                lines.append(f'stream = "{",".join(map(str, streams))}"')
            place, file = self.directory.resolve(), "collector.toml"
        elif self.name.startswith(READER):  # for people: what to type into a dashboard
            lines = [f'host = "{plan.hosts[0]}"', f"port = {plan.port}", "tls = true"]
            place, file = Path(), "reader.toml"
        else:  # the service and the owner's commands must find the same state
            brokers = [str(replace(plan.url, host=host)) for host in plan.names]
            lines = [f'state_dir = "{STATE_ON_DEVICE}"', f"credentials_for = {json.dumps(brokers)}"]
            place, file = ON_DEVICE, "edge.toml"
        lines.append(f'username = "{self.name}"')
        for setting, path in self.paths().items():
            lines.append(f"{setting} = {json.dumps(str(place / path.name))}")
        write_durably(self.directory / file, "\n".join(lines) + "\n")

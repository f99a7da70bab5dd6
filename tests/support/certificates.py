"""Authorities and certificates for tests: good ones, and one for each way of being wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import trustme

# What a client says of each: broker's certificate for localhost, except where that is the fault.
FAULTS = {
    "wrong name": "Hostname mismatch, certificate is not valid for 'localhost'",
    "wrong address": "IP address mismatch, certificate is not valid for '127.0.0.1'",
    "self-signed": "self-signed certificate",
    "another authority": "unable to get local issuer certificate",
    "expired": "certificate has expired",
}


@dataclass
class Files:
    """Authorities and certificates as files."""

    directory: Path
    ca: trustme.CA

    @classmethod
    def made(cls, directory: Path) -> Self:
        """An authority of one's own; what to trust is `ca.pem`."""
        made = cls(directory, trustme.CA())
        made.pem("ca.pem", made.ca.cert_pem)
        return made

    def pem(self, name: str, *blobs: trustme.Blob) -> Path:
        path = self.directory / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return path

    def server(
        self, *names: str, ca: trustme.CA | None = None, days: int = 30
    ) -> tuple[Path, Path]:
        """Certificate chain and key for a broker of that name."""
        until = datetime.now(UTC) + timedelta(days=days)
        issued = (ca or self.ca).issue_cert(
            *names, not_before=until - timedelta(60), not_after=until
        )
        chain = self.pem("server.pem", *issued.cert_chain_pems)
        return chain, self.pem("server.key", issued.private_key_pem)

    def client(self, name: str) -> tuple[Path, Path]:
        issued = self.ca.issue_cert(name, common_name=name)
        chain = self.pem("client.pem", *issued.cert_chain_pems)
        return chain, self.pem("client.key", issued.private_key_pem)

    def self_signed(self) -> tuple[Path, Path]:
        """An authority's own certificate, shown by a broker."""
        alone = trustme.CA()
        return self.pem("server.pem", alone.cert_pem), self.pem("server.key", alone.private_key_pem)

    def faulty(self, fault: str) -> tuple[Path, Path]:
        """A broker's certificate and key with one of `FAULTS`."""
        if fault == "self-signed":
            return self.self_signed()
        name = "elsewhere.example" if fault == "wrong name" else "localhost"
        ca = trustme.CA() if fault == "another authority" else self.ca
        return self.server(name, ca=ca, days=-1 if fault == "expired" else 30)

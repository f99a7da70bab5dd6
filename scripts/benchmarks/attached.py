"""The collector's service, attached to a broker: what the readers of benchmarks are made of.

It uses no more of the collector than earlier versions have, too: `live --against` runs it on one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from collector.data_dir import open_store
from collector.device_key import DeviceKey
from collector.links.mqtt import PahoConnector
from collector.records import Campaign
from collector.service import Service
from collector.store import Store
from protocol_spec import Manifest
from protocol_spec.programs.settings import Credentials, parse_broker

if TYPE_CHECKING:
    from collector.store_address import StoreAddress

SESSION = "reader"


def attached(
    url: str, directory: Path, trace: Callable[[str], None], shared: StoreAddress | None = None
) -> tuple[Service, Store, Campaign]:
    """The service on a broker, for the campaign whose manifest lies in a directory."""
    _set_pace()
    directory.chmod(0o700)
    store = open_store(directory, shared) if shared else open_store(directory)
    manifest = Manifest.from_bytes((directory / "manifest").read_bytes())
    campaign = store.open_campaign(manifest, int(time.time()))
    broker, key = parse_broker(url), DeviceKey(directory / "key")
    trusted = Credentials(ca_file=str(directory / "ca.crt") if broker.tls else None)
    connect = PahoConnector(broker, trusted, client_id=SESSION)
    return Service(store, key, connect, trace=trace), store, campaign


def _set_pace() -> None:
    """Garbage is searched for as `run` has it; earlier versions know no pace of their own."""
    with suppress(ImportError):
        from collector.ingest.batch import search_rarely  # noqa: PLC0415

        search_rarely()

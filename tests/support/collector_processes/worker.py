"""One of several workers, as `allomfree-collector run` runs it, but with quick timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from collector.data_dir import device_key, open_store
from collector.health import Heartbeat
from collector.service import service_for
from collector.settings import resolve
from collector.timing import Timing

TIMING: Final = Timing(
    step_seconds=0.1,
    upkeep_every_seconds=0.1,
    receipts_every_seconds=0.2,
    receipt_bytes_per_second=1e6,
    reconnect_seconds=0.2,
    reconnect_longest_seconds=1.0,
    storage_retry_seconds=0.2,
    beat_every_seconds=0.2,
    lease_seconds=2.0,
    fence_seconds=3.0,
)
SETTINGS: Final = ("store", "broker", "namespace", "stream")


def run_worker(options: Mapping[str, Any], stop: Callable[[], bool]) -> None:
    """Until told to stop."""
    given = {name: options[name] for name in SETTINGS if options[name]}
    settings = resolve({"data_dir": Path(options["data"]), **given}, environ={})
    with closing(open_store(settings.data_dir, settings.store)) as store:
        key = device_key(settings, store)
        service = service_for(settings, store, key, lambda *_: None, timing=TIMING)
        heartbeat = Heartbeat(settings.data_dir, every_seconds=0.2)
        service.run(stop, lambda: heartbeat.beat(service.status))

"""Builds the service that `run` runs: one worker alone, or one of several, as the store says."""

from __future__ import annotations

import socket
from typing import Final

from collector.brokers.auditor import limiting
from collector.brokers.embedded import EmbeddedBroker
from collector.coordinator import Emit
from collector.data_dir import client_id, session_name
from collector.device_key import DeviceKey
from collector.links import Connect
from collector.links.mqtt import SESSION_SECONDS, PahoConnector, SharedSubscription
from collector.links.stream import StreamConnector
from collector.service import Service
from collector.settings import Settings, StreamAddress
from collector.store import Store
from collector.timing import AT_HAND, USUAL, ClockMemory, Timing
from collector.workers.service import Connections, SharedService
from protocol_spec.programs.settings import SettingsError

NO_STREAM: Final = (
    "the broker configured here lets nobody pull reports, and several workers need that; nothing "
    "was started. Run: allomfree-collector broker-config nats --stream-port 4222"
)


def service_for(
    settings: Settings,
    store: Store,
    key: DeviceKey,
    emit: Emit,
    embedded: EmbeddedBroker | None = None,
    timing: Timing | None = None,
) -> Service | SharedService:
    """The service for these settings; `embedded` is the broker that is run beside it."""
    timing = timing or (USUAL if embedded is None else AT_HAND)
    if settings.store is not None:
        return _one_of_several(settings, store, key, emit, embedded, timing)
    connect = _publisher(settings, client_id(settings), embedded)
    return Service(
        store,
        key,
        connect,
        timing=timing,
        namespace=settings.namespace,
        home_assistant=settings.home_assistant or None,
        emit=emit,
        restart_broker=_nothing_to_restart if embedded is None else embedded.restart,
        clock_memory=ClockMemory(settings.data_dir),
    )


def _one_of_several(
    settings: Settings,
    store: Store,
    key: DeviceKey,
    emit: Emit,
    embedded: EmbeddedBroker | None,
    timing: Timing,
) -> SharedService:
    return SharedService(
        store,
        key,
        _lines(settings, store, embedded),
        name=socket.gethostname(),
        timing=timing,
        namespace=settings.namespace,
        home_assistant=settings.home_assistant or None,
        emit=emit,
        clock_memory=ClockMemory(settings.data_dir),
    )


def _lines(settings: Settings, store: Store, embedded: EmbeddedBroker | None) -> Connections:
    """Reports from NATS's own stream where its address is known, else by shared subscription."""
    publisher = _publisher(settings, _named(settings, store.leader_session()), embedded)
    restart = _nothing_to_restart if embedded is None else embedded.restart
    if settings.stream is not None or embedded is not None:
        return Connections(
            _stream(settings, embedded), publisher, whole=True, restart_broker=restart
        )
    own = _named(settings, session_name(settings.data_dir))
    connect = _publisher(settings, own, None, SESSION_SECONDS)
    return Connections(
        lambda: SharedSubscription(connect(None), settings.namespace), publisher, whole=False
    )


def _named(settings: Settings, name: str) -> str:
    """Every session has a name of its own, though workers may have one configuration."""
    return name if settings.client_id is None else f"{settings.client_id}-{name}"


def _stream(settings: Settings, embedded: EmbeddedBroker | None) -> StreamConnector:
    named = settings.stream
    for address in named or ():
        address.check_plaintext(settings.allow_plaintext)
    if named is None and embedded is not None and embedded.streams is None and not embedded.trouble:
        raise SettingsError(NO_STREAM)

    def addresses() -> tuple[StreamAddress, ...]:
        return named or (embedded.streams if embedded is not None else None) or ()

    return StreamConnector(
        addresses, settings.credentials(), settings.namespace, keepalive=settings.keepalive
    )


def _publisher(
    settings: Settings,
    name: str,
    embedded: EmbeddedBroker | None,
    session_seconds: int | None = None,
) -> Connect:
    kept = {} if session_seconds is None else {"session_seconds": session_seconds}
    connect = PahoConnector(
        settings.required_broker(),
        settings.credentials(),
        client_id=name,
        keepalive=settings.keepalive,
        **kept,
    )
    if embedded is not None:
        return embedded.connecting(connect)
    return limiting(settings.broker_dir, settings.required_broker(), connect)


def _nothing_to_restart() -> None:
    return

"""How the collector connects, from its settings: the service that `run` runs, and an invitation."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

from collector.brokers.auditor import limiting
from collector.brokers.embedded import EmbeddedBroker
from collector.data_dir import client_id, session_name
from collector.device_key import DeviceKey
from collector.links import Connect, Link, Links
from collector.links.mqtt import SHARED_SESSION_SECONDS, PahoConnector, PahoLink, Subscription
from collector.links.stream import StreamConnector
from collector.records import Campaign
from collector.rounds.publishing import publish_manifest
from collector.service import Options, Service
from collector.settings import Settings, StreamAddress
from collector.store import Store
from collector.timing import AT_HAND, USUAL, Timing
from protocol_spec import Result, Topics
from protocol_spec.programs.settings import BrokerUnreachable, SettingsError
from protocol_spec.programs.system import random_client_id

ANSWER_SECONDS: Final = 10.0
NO_STREAM: Final = (
    "the broker configured here lets nobody pull reports, and several workers need that; nothing "
    "was started. Run: allomfree-collector broker-config nats --stream-port 4222"
)


def service_for(
    settings: Settings,
    store: Store,
    key: DeviceKey,
    emit: Callable[[Campaign, Result], None],
    embedded: EmbeddedBroker | None = None,
    timing: Timing | None = None,
) -> Service:
    """The service for these settings: alone, or one of several workers where the store is shared.

    `embedded` is the broker that is run next to it.
    """
    options = Options(
        timing=timing or (USUAL if embedded is None else AT_HAND),
        emit=emit,
        name=socket.gethostname(),
        namespace=settings.namespace,
        home_assistant=settings.home_assistant or None,
        clock_dir=settings.data_dir,
    )
    links = _for_one if settings.store is None else _for_several
    return Service(store, key, links(settings, store, options, embedded), options)


def _for_one(
    settings: Settings, _store: Store, options: Options, embedded: EmbeddedBroker | None
) -> Links:
    connect = _connector(settings, client_id(settings), embedded)
    return Links(
        lambda will: Subscription(
            connect(will), settings.namespace, clock=options.clock, timing=options.timing
        ),
        restart_broker=_restart(embedded),
    )


def _for_several(
    settings: Settings, store: Store, options: Options, embedded: EmbeddedBroker | None
) -> Links:
    """Reports from NATS's own stream where its address is known, else by shared subscription."""
    publisher = _connector(settings, _named(settings, store.leader_session()), embedded)
    if settings.stream is not None or embedded is not None:
        stream = _stream(settings, embedded)
        return Links(lambda _: stream(), publisher, whole=True, restart_broker=_restart(embedded))
    own = _named(settings, session_name(settings.data_dir))
    connect = _connector(settings, own, None, session_seconds=SHARED_SESSION_SECONDS)
    return Links(
        lambda _: Subscription(
            connect(None),
            settings.namespace,
            shared=True,
            clock=options.clock,
            timing=options.timing,
        ),
        publisher,
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


def _connector(
    settings: Settings, name: str, embedded: EmbeddedBroker | None, **options: int
) -> Connect:
    broker = settings.required_broker()
    connect = PahoConnector(
        broker,
        settings.credentials(),
        client_id=name,
        keepalive=settings.keepalive,
        **options,
    )
    if embedded is not None:
        return embedded.connecting(connect)
    return limiting(settings.broker_dir, broker, connect)


def _restart(embedded: EmbeddedBroker | None) -> Callable[[], None]:
    return (lambda: None) if embedded is None else embedded.restart


def publish_invitation(settings: Settings, campaign: Campaign, signature: bytes) -> str | None:
    """Publish a campaign's manifest without the service, so that devices can join as soon as it is
    open; None when the broker took it, else why not.

    With a user name the connection keeps the session that goes with it, because a broker may take
    that name for the collector's own.
    """
    named = settings.username is not None
    link = PahoLink(
        settings.required_broker(),
        settings.credentials(),
        client_id=client_id(settings) if named else random_client_id("open"),
        persistent=named,
    )
    try:
        link.connect()
        topics = Topics(campaign.name, settings.namespace)
        return _answer(link, publish_manifest(link, topics, campaign.manifest, signature))
    except BrokerUnreachable as error:
        return str(error)
    finally:
        link.close()


def _answer(link: Link, sent: list[int]) -> str | None:
    """The first refusal, or None when all were taken."""
    limit, answers = time.monotonic() + ANSWER_SECONDS, dict[int, str | None]()
    while time.monotonic() < limit and not link.lost:
        link.step(0.1)
        answers |= link.answers()
        if answers.keys() >= set(sent):
            return next((answers[number] for number in sent if answers[number]), None)
    return link.lost or "the broker did not answer in time"

"""Which broker to use: the one named, the one configured here, or the embedded one."""

from __future__ import annotations

from dataclasses import replace

from collector.brokers.directory import BrokerDirectory
from collector.brokers.embedded import EmbeddedBroker
from collector.settings import Settings
from protocol_spec.programs.address import BrokerUrl


def choose_broker(settings: Settings) -> tuple[Settings, EmbeddedBroker | None]:
    """The settings with a broker and its credential; and the embedded broker, if it is that."""
    if settings.broker is not None:
        return settings, None
    if not BrokerDirectory.exists(settings.broker_dir):
        embedded = EmbeddedBroker(settings.broker_dir)
        return replace(settings, broker=embedded.url), embedded
    configured = BrokerDirectory.load(settings.broker_dir)
    known = replace(settings, **configured.settings())
    ours = configured.plan.kind == "nats"
    return known, EmbeddedBroker(settings.broker_dir) if ours else None


def address_for_devices(settings: Settings) -> BrokerUrl:
    """The broker's address as devices use it."""
    if settings.broker is None and BrokerDirectory.exists(settings.broker_dir):
        return BrokerDirectory.load(settings.broker_dir).plan.url
    known, _ = choose_broker(settings)
    return known.required_broker()

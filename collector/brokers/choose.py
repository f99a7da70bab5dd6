"""Which broker to use: the one named, the one configured here, or the one in the box."""

from __future__ import annotations

from dataclasses import replace

from collector.brokers.directory import BrokerDirectory
from collector.brokers.embedded import EmbeddedBroker
from collector.settings import Settings
from protocol_spec.programs.address import BrokerUrl


def choose_broker(settings: Settings) -> tuple[Settings, EmbeddedBroker | None]:
    """The settings with a broker and how to be let in; and the box, if it has to be running."""
    if settings.broker is not None:
        return settings, None
    if not BrokerDirectory.exists(settings.broker_dir):
        box = EmbeddedBroker(settings.broker_dir)
        return replace(settings, broker=box.url), box
    configured = BrokerDirectory.load(settings.broker_dir)
    known = replace(settings, **configured.settings())
    inside = configured.plan.kind == "nats"
    return known, EmbeddedBroker(settings.broker_dir) if inside else None


def address_for_devices(settings: Settings) -> BrokerUrl:
    """What a person types on a device."""
    if settings.broker is None and BrokerDirectory.exists(settings.broker_dir):
        return BrokerDirectory.load(settings.broker_dir).plan.url
    known, _ = choose_broker(settings)
    return known.required_broker()

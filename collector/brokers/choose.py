"""Which broker to use: the one named, the one configured here, or the embedded one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from collector.brokers.directory import BrokerDirectory
from collector.brokers.embedded import EmbeddedBroker
from collector.brokers.readers import announce_below
from collector.brokers.upkeep import name_campaigns
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
    if settings.home_assistant is None:
        known = replace(known, home_assistant=configured.plan.home_assistant)
    ours = configured.plan.kind == "nats" and not configured.plan.nodes
    return known, EmbeddedBroker(settings.broker_dir) if ours else None


def address_for_devices(settings: Settings) -> BrokerUrl:
    """The broker's address as devices use it."""
    if settings.broker is None and BrokerDirectory.exists(settings.broker_dir):
        return BrokerDirectory.load(settings.broker_dir).plan.url
    known, _ = choose_broker(settings)
    return known.required_broker()


def let_announce(settings: Settings) -> BrokerDirectory | None:
    """Let the collector announce campaigns to Home Assistant, if that was asked for, at a broker
    configured here. Returns what has to be reloaded; None if nothing changed."""
    path, asked = settings.broker_dir.absolute(), settings.home_assistant
    if settings.broker is not None or asked is None or not BrokerDirectory.exists(path):
        return None
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        if configured.plan.home_assistant == (asked or None):
            return None
        announce_below(configured, asked or None)
    return configured


def let_report_to(settings: Settings, campaigns: Iterable[str]) -> BrokerDirectory | None:
    """Name the campaigns in the access list of a broker configured here, where that can name them.

    Returns what has to be reloaded; None if nothing changed.
    """
    path, names = settings.broker_dir.absolute(), tuple(sorted(campaigns))
    if not BrokerDirectory.exists(path):
        return None
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        if not configured.plan.names_campaigns or configured.plan.campaigns == names:
            return None
        name_campaigns(configured, names)
    return configured

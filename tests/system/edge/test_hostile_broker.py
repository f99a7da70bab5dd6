"""A5: no broker can make the agent use memory without bound, and then it reports as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.records import Timing
from protocol_spec import ReceiptPage, digest8, receipt_page, receipt_tag
from tests.support.campaigns import manifest
from tests.support.collector_processes.processes import resident
from tests.support.edge_processes.processes import AgentProcess, draw_now, joined, wait_until
from tests.support.hostile import ATTACKS, Hostile
from tests.support.network import Peer, Published, Wire

SOON = Timing(step=0.05, resend=1.0, reconnect=0.02, reconnect_longest=0.05)
EXTRA_MIB = 20


@pytest.mark.slow
def test_an_agent_outlives_every_attack_in_little_memory(tmp_path: Path) -> None:
    asked = manifest()

    def counting(wire: Wire) -> None:
        def receive(published: Published) -> None:
            wire.puback(published.mid)
            wire.publish(topic, page)

        wire.connack()
        wire.serve(receive)

    number = receipt_page(asked, "device")
    tags = frozenset({receipt_tag(asked, 0, "device")})
    page = ReceiptPage(digest8(asked), 0, number, tags).encode()
    topic = f"allomfree/v1/{asked.campaign}/pub/receipt/0/{number}"
    hostile = Hostile(counting)
    with Peer(hostile) as peer:
        config = joined(tmp_path / "state", asked, peer.url)
        draw_now(tmp_path / "state")
        with AgentProcess(config, timing=SOON) as agent:
            wait_until(lambda: len(hostile.left) < len(ATTACKS))
            before = resident(agent.pid)
            agent.wait_for("round 0 was counted", timeout=120)
            assert resident(agent.pid) < before + EXTRA_MIB
            assert agent.said("the broker broke the rules of MQTT: it sent a SUBACK of") == 2
            assert agent.is_running
    assert hostile.left == []

"""`invite`: the link with the whole digest, as text and as a code that can be scanned."""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from pathlib import Path

from collector.data_dir import open_store, read_store
from collector.opening import ADDRESS_FILE, is_for_others, join_link
from collector.records import Campaign
from protocol_spec.programs.settings import parse_invitation
from tests.support.command_line import Cli, facts_of, mistaken, read_code, squares_of

BROKER = "mqtts://broker.example"


def test_the_link_names_broker_and_whole_digest(cli: Cli, data: Path, used: Campaign) -> None:
    told = facts_of(cli("invite", "--data-dir", data, "--broker", BROKER, "--json"))
    named = parse_invitation(told["link"])
    assert (str(named.broker), named.campaign) == (f"{BROKER}:8883", used.name)
    assert named.digest == used.manifest.digest
    assert told["digest"] == used.manifest.digest.hex()


def test_the_code_is_the_link(cli: Cli, data: Path, used: Campaign) -> None:
    said = cli("invite", used.name, "--data-dir", data, "--broker", BROKER, "--namespace", "ours")
    lines = said.stdout.splitlines()
    code = [line for line in lines if set(line) <= set(" ▀▄█") and len(line) > 40]
    link = f"{BROKER}:8883/ours/{used.manifest.full_name}"
    assert read_code(squares_of(code)) == link
    assert f"    allomfree-edge join {link}" in lines
    assert link in lines


def test_a_link_to_this_machine_is_of_no_use_to_others(
    cli: Cli, data: Path, used: Campaign
) -> None:
    said = cli("invite", "--data-dir", data, "--broker", "mqtt://localhost").stdout
    assert "name the broker as they reach it, as in --broker mqtts://broker.example" in said
    assert "broker-config" not in said
    assert "▀" not in said
    assert not any(map(is_for_others, ("mqtt://127.0.0.1/a", "mqtt://[::1]:1/a", "nonsense")))


def test_the_embedded_broker_is_set_up_for_others_as_told(
    cli: Cli, data: Path, used: Campaign
) -> None:
    """With a host, without which the command fails; also if it was for this machine before."""
    for before in ("set up a broker, NAME being this", "configure it again, NAME being this"):
        said = cli("invite", "--data-dir", data).stdout
        assert before in said
        (line,) = re.findall(r"allomfree-collector (broker-config .*)", said)
        words = shlex.split(line)
        assert words == ["broker-config", "--data-dir", str(data), "nats", "--host", "NAME"]
        done = cli(*words[:-1], "localhost")
        assert done.exit_code == 0, done.stderr
    assert cli(*words[:-1], "192.0.2.7", "--bind", "127.0.0.1").exit_code == 0
    assert "▀" in cli("invite", "--data-dir", data).stdout


def test_a_closed_campaign_invites_nobody(cli: Cli, data: Path, used: Campaign) -> None:
    with closing(open_store(data)) as store:
        store.close_campaign(used, 1)
    told = mistaken(cli, 1, "invite", "--data-dir", data, "--broker", BROKER)
    assert "nobody can join it any more" in told


def test_the_page_knows_the_address_of_the_last_time(cli: Cli, data: Path, used: Campaign) -> None:
    assert join_link(data, used.manifest) is None
    cli("invite", "--data-dir", data, "--broker", BROKER)
    link = f"{BROKER}:8883/allomfree/{used.manifest.full_name}"
    assert join_link(data, used.manifest) == link
    (data / ADDRESS_FILE).write_bytes(b"\xff")
    assert join_link(data, used.manifest) is None
    with closing(read_store(data)) as store:
        assert store.campaigns()

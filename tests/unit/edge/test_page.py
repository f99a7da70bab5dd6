"""`page`: the statement on this machine only, for whoever was told the address, and read-only."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_client.errors import CampaignProblem, SettingsError
from edge_client.page import AT_ONCE, PageServer
from tests.support.command_line import Cli
from tests.support.edge import FakeClock, daily, draw_rounds, joined_agent
from tests.support.harness import ROOT

PAGE = "<!doctype html><p>secret statement"


@contextmanager
def serving(render: object = lambda: PAGE) -> Iterator[PageServer]:
    with PageServer(render, 0) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, headers={"Host": "localhost", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_whoever_has_the_address_sees_it() -> None:
    with serving() as server:
        path = server.url.split(str(server.server_port))[1]
        assert asked(server, path) == (200, PAGE)
        assert asked(server, path, "HEAD") == (200, "")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", server.url)


@pytest.mark.parametrize("path", ["/", "//", "/index.html", "/{}", "/{}/x", "/{}/?x"])
def test_nobody_else_does(path: str) -> None:
    """Other users of the machine reach the port, but do not know the word."""
    with serving() as server:
        status, said = asked(server, path.format(server.word))
        assert status == 404
        assert "secret" not in said
        assert server.word not in said
        near = "1" if server.word[-1] == "0" else "0"
        assert asked(server, f"/{server.word[:-1]}{near}/")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "192.0.2.1:80"])
def test_a_web_site_cannot_point_its_name_here(host: str) -> None:
    with serving() as server:
        status, said = asked(server, f"/{server.word}/", Host=host)
        assert (status, "secret" in said) == (421, False)
        for ours in ("localhost", "localhost:99", "127.0.0.1", "127.0.0.1:99"):
            assert asked(server, f"/{server.word}/", Host=ours)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(method: str) -> None:
    with serving() as server:
        assert asked(server, f"/{server.word}/", method)[0] == 501


def test_the_answer_is_not_kept_framed_or_told_to_others() -> None:
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("GET", f"/{server.word}/")
        told = connection.getresponse().headers
        connection.close()
    assert told["Cache-Control"] == "no-store"
    assert told["Referrer-Policy"] == "no-referrer"
    assert told["Content-Security-Policy"].startswith("default-src 'none'; style-src")
    assert told["X-Frame-Options"] == "DENY"
    assert told["Server"].strip() == "allomfree-edge"


def test_it_listens_on_this_machine_only() -> None:
    with serving() as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        with socket.socket() as other:  # another address of this machine's
            assert other.connect_ex(("127.0.0.2", server.server_port)) != 0


def test_those_who_say_nothing_keep_nobody_out() -> None:
    """They are heard side by side, up to a number; beyond it a connection is closed at once."""
    with serving() as server:
        silent = [
            socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(AT_ONCE - 1)
        ]
        try:
            assert asked(server, f"/{server.word}/") == (200, PAGE)
            beyond = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(3)]
            silent += beyond
            beyond[-1].settimeout(20)
            assert beyond[-1].recv(10) == b""
        finally:
            for one in silent:
                one.close()


def test_what_is_wrong_is_said() -> None:
    def fail() -> str:
        raise CampaignProblem("the memory is gone")

    with serving(fail) as server:
        assert asked(server, f"/{server.word}/") == (503, "the memory is gone\n")


def test_a_port_in_use_is_told() -> None:
    with serving() as server, pytest.raises(SettingsError, match="--port 0 takes any"):
        PageServer(lambda: PAGE, server.server_port)


def test_a_memory_that_cannot_be_read_is_told_at_once(cli: Cli, tmp_path: Path) -> None:
    exposed = tmp_path / "exposed"
    exposed.mkdir(mode=0o755)
    exposed.chmod(0o755)
    done = cli("page", "--port", "0", "--state-dir", exposed)
    assert done.exit_code == 1
    assert "can be read by other users" in done.stderr
    assert "has joined no campaign" in cli("page", "heat", "--state-dir", tmp_path / "new").stderr


RUN = """
import sys
from edge_client.__main__ import main
try:
    main(sys.argv[1:])
finally:
    print("\\n".join(sorted(sys.modules)))
"""


def test_the_command(state: Path, clock: FakeClock, home: Path) -> None:
    """It shows what is there at each moment, loads no MQTT, and ends politely."""
    agent = joined_agent(state, clock, daily())
    words = ("page", "--port", "0", "--state-dir", str(state), "--language", "de")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", RUN, *words], env=environ, text=True, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout
        found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+/)", server.stdout.readline())
        assert found
        port, path = int(found[1]), found[2]
        first = fetched(port, path)
        assert "Noch hat nichts dieses Gerät verlassen." in first
        assert f"allomfree-edge leave {daily().campaign} --state-dir {state}" in first
        assert "laden Sie die Seite neu" in first
        draw_rounds(agent, clock, 1)
        assert "Runde 0" in fetched(port, path)
        server.send_signal(signal.SIGTERM)
        loaded = set(server.communicate(timeout=60)[0].split())
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
        agent.store.close()
    assert {"edge_client.page", "edge_client.store"} <= loaded
    assert {name.split(".")[0] for name in loaded}.isdisjoint({"paho", "numpy", "collector"})


def fetched(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_looking_loads_no_mqtt(state: Path, home: Path) -> None:
    """`show` and `status` ask no broker, and start the faster for it."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    for verb in ("show", "status"):
        code = RUN.replace("main(sys.argv[1:])", f"main(['{verb}', '--state-dir', sys.argv[1]])")
        done = subprocess.run(
            [sys.executable, "-c", code, str(state)],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "edge_client.store" in done.stdout.split()
        assert "paho.mqtt.client" not in done.stdout.split(), verb

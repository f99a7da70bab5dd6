"""Broker, collector and fleet as real processes; a kill -9 in the middle; the result at the end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import click

from collector.data_dir import open_store, read_store
from collector.records import Campaign
from collector.show.truth import write_truth
from collector.store import Store
from demonstration.checks import Check, counted_once, intervals_hold, truth
from demonstration.picture import draw
from demonstration.population import manifest
from simulation.children import command_of, end_process, environment

QUICK_START = 2.0  # seconds in which a collector runs on an idle desktop machine
FLEETS = 8  # processes at most: agents spend their time waiting for the disk


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--devices",
    type=click.IntRange(20, 10_000),
    default=500,
    help="Agents in the fleet.",
    show_default=True,
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=4,
    help="Rounds to collect.",
    show_default=True,
)
@click.option(
    "--period",
    type=click.IntRange(4, 3600),
    help="Seconds of a round; 8, and more for large fleets.",
)
@click.option("--broker", help="A broker's address instead of the embedded one.")
@click.option("--keep", is_flag=True, help="Leave the page up at the end, until Ctrl-C.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep all files here.")
@click.option("--figure", type=click.Path(path_type=Path), help="Also write the picture here.")
def main(
    devices: int,
    rounds: int,
    period: int | None,
    broker: str | None,
    keep: bool,
    directory: Path | None,
    figure: Path | None,
) -> None:
    """Show the whole system at work, and check what it shows."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the others too
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="allomfree-")
        work = directory or Path(stack.enter_context(temporary))
        work.mkdir(parents=True, exist_ok=True)
        demo = Demo(work, stack, broker)
        checks = demo.tell(devices, rounds, period)
        for check in checks:
            click.echo(f"  {'ok  ' if check.ok else 'FAIL'}  {check.text}")
        failed = sum(not check.ok for check in checks)
        held = "All" if not failed else len(checks) - failed
        click.echo(f"\n{held} of {len(checks)} checks hold.")
        if figure is not None:
            demo.draw_figure(figure)
        if keep:
            demo.wait_for_reader()
    sys.exit(1 if failed else 0)


class Demo:
    """The processes of one demonstration; every one ends with it."""

    def __init__(self, work: Path, stack: ExitStack, broker: str | None) -> None:
        self.work = work
        self.data = work / "collector"
        self._stack = stack
        self._broker = broker
        self._collector: subprocess.Popen[bytes] | None = None
        self._page = f"127.0.0.1:{_free_port()}"
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Progress, with the seconds since the start."""
        click.echo(f"[{time.monotonic() - self._began:5.1f} s] {text}")

    def tell(self, devices: int, rounds: int, period: int | None) -> list[Check]:
        """The whole story."""
        self.data.mkdir(mode=0o700, exist_ok=True)
        self._start_collector()
        # A small or busy machine takes longer for everything, so it gets longer rounds.
        slow = min(4.0, max(1.0, (time.monotonic() - self._began) / QUICK_START))
        period = period or round(slow * (8 + devices // 200))
        if slow > 1.5:
            self.say(f"this machine is small or busy: rounds of {period} seconds")
        campaign = self._open(devices, rounds, period, round(slow * (8 + devices // 60)))
        drawn = self._start_fleet(campaign, devices)
        names = [attribute.name for attribute in campaign.manifest.attributes]
        held = truth(campaign, drawn)
        write_truth(self.data, campaign.name, {n: f.tolist() for n, f in zip(names, held)})
        self._collect(campaign, devices)
        self._stop_fleet()
        self.say("what the collector estimated (bar), its 95 % interval [ ], and the truth (●)")
        return self._finish(campaign, drawn)

    def _open(self, devices: int, rounds: int, period: int, lead: int) -> Campaign:
        made = manifest(devices, rounds, period, grace=period + 4, lead=lead)
        (self.work / "manifest").write_bytes(made.to_bytes())
        store = open_store(self.data)
        campaign = store.open_campaign(made, int(time.time()))
        store.close()
        chosen = ", ".join(
            f"{a.name}: {c.protocol} for {c.k} values"
            for a, c in zip(made.attributes, made.calibrations)
        )
        self.say(f"opened {campaign.name} ({chosen})")
        return campaign

    # --- processes -----------------------------------------------------------------------------

    def _start_collector(self) -> None:
        command = self._collector_command("run", "--quiet", "--listen", self._page)
        command += ["--broker", self._broker] if self._broker else []
        self._collector = self._spawn(command, "collector.log")
        self._wait("the collector to connect", self._connected)
        where = self._broker or "the embedded broker"
        self.say(f"collector running (process {self._collector.pid}) with {where}")
        self.say(f"watch it live: http://{self._page}/")

    def _connected(self) -> bool:
        done = subprocess.run(
            self._collector_command("health"), capture_output=True, check=False, env=environment()
        )
        return done.returncode == 0

    def _collector_command(self, command: str, *words: str | Path) -> list[str]:
        return command_of("allomfree-collector", command, "--data-dir", self.data, *words)

    def _start_fleet(self, campaign: Campaign, devices: int) -> dict[int, str]:
        self.say(f"starting {devices} agents, each with its own memory and connection")
        per = max(250, -(-devices // FLEETS))
        self._fleets = [
            self._spawn(
                [
                    sys.executable,
                    "-m",
                    "demonstration.fleet",
                    str(self.work / "devices"),
                    str(self.work / "manifest"),
                    self._url(),
                    str(i),
                    str(min(i + per, devices)),
                ],
                "fleet.log",
                capture=True,
            )
            for i in range(0, devices, per)
        ]
        drawn: dict[int, str] = {}
        for fleet in self._fleets:
            line = _output(fleet).readline()
            if not line:
                raise self._failure("some agents could not start", "fleet.log")
            drawn.update({int(device): name for device, name in json.loads(line).items()})
        shares = {a.name: list(drawn.values()).count(a.name) for a in campaign.manifest.attributes}
        text = " and ".join(f"{n} drew {name}" for name, n in shares.items())
        self.say(f"every agent drew one question for life: {text}")
        return drawn

    def _url(self) -> str:
        if self._broker:
            return self._broker
        port = (self.data / "broker" / "port").read_text(encoding="ascii")
        return f"mqtt://127.0.0.1:{port}"

    def _stop_fleet(self) -> None:
        for fleet in self._fleets:
            fleet.send_signal(signal.SIGTERM)
        usage = [json.loads(_output(fleet).read().splitlines()[-1]) for fleet in self._fleets]
        memory = sum(u["memory_mib"] for u in usage)
        seconds = sum(u["cpu_seconds"] for u in usage)
        self.say(f"the fleet used {memory:.0f} MiB of memory and {seconds:.1f} s of processor time")

    def _spawn(
        self, command: list[str], log: str, *, capture: bool = False
    ) -> subprocess.Popen[bytes]:
        file = self._stack.enter_context((self.work / log).open("ab"))
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE if capture else file, stderr=file, env=environment()
        )
        self._stack.callback(end_process, process)
        return process

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        limit = time.monotonic() + 60
        while not ready():
            if time.monotonic() > limit:
                raise self._failure(f"waited in vain for {what}")
            self._check_alive()
            time.sleep(0.2)

    # --- collecting ----------------------------------------------------------------------------

    def _collect(self, campaign: Campaign, devices: int) -> None:
        """Watch the rounds fill; kill the collector in the middle of one."""
        schedule = campaign.manifest.rounds
        store = read_store(self.data)
        killed, shown, next_word = schedule.count < 2, "", 0.0
        while True:
            last = store.last_sealed(campaign.id)
            if last == schedule.count - 1:
                break
            line = _progress(store, campaign, devices)
            if line != shown and time.monotonic() >= next_word:
                shown, next_word = line, time.monotonic() + 3.0
                self.say(line)
            middle = schedule.opens(1) + schedule.period / 2
            if not killed and time.time() > middle:
                killed = True
                self._kill_and_restart()
            self._check_alive()
            time.sleep(0.5)
        store.close()
        self.say("all rounds are sealed")

    def _kill_and_restart(self) -> None:
        if self._collector is None:
            return
        self.say(f"kill -9 {self._collector.pid}: the collector dies, and its broker with it")
        self._collector.kill()
        self._collector.wait()
        self._start_collector()

    def _check_alive(self) -> None:
        if self._collector is None or self._collector.poll() is not None:
            raise self._failure("the collector ended")

    def _failure(self, what: str, log: str = "collector.log") -> click.ClickException:
        """What went wrong, with the last words of the log: its file goes with the demonstration."""
        file = self.work / log
        lines = file.read_text(encoding="utf-8").splitlines()[-5:] if file.exists() else []
        return click.ClickException("\n".join([f"{what}. Its last words:", *lines]))

    # --- the end -------------------------------------------------------------------------------

    def _finish(self, campaign: Campaign, drawn: dict[int, str]) -> list[Check]:
        store = read_store(self.data)
        for index, true in enumerate(truth(campaign, drawn)):
            attribute = campaign.manifest.attributes[index]
            result = next(r for r in store.results(campaign.id, index) if r.round is None)
            size = f"{result.devices} devices, {result.rounds} rounds pooled"
            click.echo(f"\n{attribute.question} ({result.protocol}, {size})")
            if not result.withheld:
                click.echo(draw(result, attribute.values, true))
        self._owners_view()
        checks = counted_once(store, campaign, drawn) + intervals_hold(store, campaign, drawn)
        store.close()
        click.echo("")
        return checks

    def draw_figure(self, file: Path) -> None:
        """The first histogram as the collector exports it, with the truth."""
        chosen = ("--attribute", "heating", "--round", "pooled")
        command = self._collector_command("export", *chosen, "--figure", file)
        subprocess.run(command, check=True, env=environment())

    def wait_for_reader(self) -> None:
        """The collector and its page go on until somebody has seen enough."""
        click.echo(f"\nThe page stays on http://{self._page}/ until you press Ctrl-C.")
        with suppress(KeyboardInterrupt):
            while True:
                self._check_alive()
                time.sleep(1)

    def _owners_view(self) -> None:
        click.echo("\nWhat the owner of device 0 sees (allomfree-edge show):\n")
        state = self.work / "devices" / "device-0"
        command = command_of("allomfree-edge", "show", "--state-dir", state)
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment()
        )
        click.echo("\n".join("    " + line for line in done.stdout.splitlines()))


def _progress(store: Store, campaign: Campaign, devices: int) -> str:
    filling = [
        f"round {number}: {sum(t.n for t in store.tallies(campaign.id, number).values())}"
        for number in store.open_rounds(campaign.id)
    ]
    last = store.last_sealed(campaign.id)
    sealed = 0 if last is None else last + 1
    waiting = "waiting for the first round"
    return f"{sealed} sealed; {', '.join(filling) or waiting} of {devices} counted"


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None  # noqa: S101 - it was opened with a pipe
    return process.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

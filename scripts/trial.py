"""Try a campaign on this machine: its manifest, a collector, a thousand real agents, a picture.

    python scripts/trial.py docs/examples/home-heat.toml
    python scripts/trial.py heat.toml --rehearse

The first collects in a temporary directory, closed to other machines. The second rehearses on your
own data directory and the broker configured there, over TLS: its agents are enrolled for the trial
and revoked after it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
import click

from collector.brokers.choose import choose_broker
from collector.brokers.directory import BrokerDirectory
from collector.commands.options import DURATION
from collector.data_dir import read_store
from collector.health import examine
from collector.opening import read_campaign
from collector.records import Campaign
from collector.results.facts import known_truth
from collector.settings import resolve
from collector.store import Store
from edge_client import EdgeClient
from protocol_spec import AllomfreeError
from protocol_spec.programs.invitation import ENDING, read_invitation
from testbed.agents import AgentProcesses, Work, measure_pace, policy_for
from testbed.collector import watch
from testbed.processes import Process, TestbedError, free_port, is_open

PREFIX: Final = "trial"  # of the agents' names
PERIOD_SECONDS: Final = 20
TURN_SECONDS: Final = 1.0
AGENTS_A_PROCESS: Final = 300
SPARE: Final = 2.0  # times what the agents need in a round
START_SECONDS: Final = 60.0
FILE: Final = click.Path(path_type=Path)
EMPTY: Final = Path(os.devnull)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("manifest", type=FILE)
@click.option(
    "--devices",
    type=click.IntRange(10, 10_000),
    default=2_000,
    show_default=True,
    envvar="ALLOMFREE_TRIAL_DEVICES",
    help="Agents to start.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 15), default=6, show_default=True, help="Rounds to collect."
)
@click.option(
    "--trial-round",
    "period_seconds",
    type=DURATION,
    envvar="ALLOMFREE_TRIAL_ROUND",
    metavar="DURATION",
    help="Length of a round.  [default: 20s, more on a busy machine]",
)
@click.option(
    "--rehearse", is_flag=True, help="Use your data directory and the broker configured there."
)
@click.option("--data-dir", type=FILE, help="Rehearse on this data directory instead.")
@click.option("--figure", type=FILE, help="Also write the histograms to this .svg or .png.")
@click.option("--keep", is_flag=True, help="Keep everything up at the end, until Ctrl-C.")
def main(
    manifest: Path,
    devices: int,
    rounds: int,
    period_seconds: int | None,
    rehearse: bool,
    data_dir: Path | None,
    figure: Path | None,
    keep: bool,
) -> None:
    """Try a campaign on this machine: its manifest, a collector, real agents, a picture.

    The agents make their answers up, so the true frequencies are known and drawn as well. With
    --rehearse it uses the broker that you configured: agents are enrolled for the trial, connect
    over TLS with credentials of their own, and are revoked after it.
    """
    with ExitStack() as stack:
        try:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allomfree-")))
            trial = Trial(stack, place, rehearse or data_dir is not None, data_dir)
            complete = trial.run(manifest, devices, rounds, period_seconds, figure)
            if keep:
                trial.wait_for_interrupt()
        except AllomfreeError as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            raise click.ClickException("ended; the agents' state is deleted") from None
    sys.exit(0 if complete else 1)


class Trial:
    """One trial; what it started ends with the stack, and what it enrolled is revoked."""

    def __init__(self, stack: ExitStack, place: Path, own: bool, data_dir: Path | None) -> None:
        self._stack = stack
        self._place = place
        self._own = own  # the operator's, not a temporary one
        if own:
            self._settings = resolve({"data_dir": data_dir})
        else:
            self._settings = resolve({"data_dir": place / "collector"}, environ={}, config=EMPTY)
        self._began = time.monotonic()
        self._collector: Process | None = None

    def run(
        self,
        manifest: Path,
        devices: int,
        rounds: int,
        period_seconds: int | None,
        figure: Path | None,
    ) -> bool:
        """Returns whether every report that was drawn was counted."""
        processes = -(-devices // AGENTS_A_PROCESS)
        meant = read_campaign(manifest, [], int(time.time()) - 1, trial_seconds=3_600)
        needed = SPARE * devices / processes * measure_pace(meant, processes).report
        period = period_seconds or max(PERIOD_SECONDS, round(needed))
        self._need_broker()
        secured = self._enrol(devices)
        self._start_collector()
        opened = self._command("open", manifest, "--trial", "--trial-round", f"{period}s", "--json")
        campaign = self._campaign(json.loads(opened)["campaign"])
        if self._own:
            self._stack.callback(self._command, "close", campaign.name, "--yes")
        self._say(f"opened {campaign.name}: rounds of {period} s")
        broker, invitations = self._broker(secured)
        self._say(f"starting {devices} agents, which connect to {broker}")
        with AgentProcesses(
            self._place / "devices", campaign.manifest, broker, {n: {} for n in range(devices)},
            processes, credentials=invitations, prefix=PREFIX, turn_seconds=TURN_SECONDS,
        ) as agents:  # fmt: skip
            if invitations is not None:
                self._try_link(campaign, broker, invitations)
            last = self._watch(campaign, rounds, agents)
            work = agents.stop()
        click.echo(f"\n{self._command('estimate', campaign.name, '--plot')}")
        if figure is not None:
            self._command("export", campaign.name, "--round", "pooled", "--figure", figure)
            self._say(f"wrote {figure}")
        return self._report(campaign, work, last, devices, broker, secured)

    # --- the operator's data directory, or a temporary one ---------------------------------------

    def _enrol(self, devices: int) -> BrokerDirectory | None:
        """Credentials for the agents; None where the broker asks for none."""
        path = self._settings.broker_dir.absolute()
        if not BrokerDirectory.exists(path):
            if self._own and self._settings.broker is not None:
                raise TestbedError(
                    f"{self._settings.broker} was not configured with broker-config in {path}, so "
                    "no agent can be enrolled here; nothing was started. Run this where it was"
                )
            return None
        names = [f"{PREFIX}-{number}" for number in range(devices)]
        with BrokerDirectory.changing(path):
            configured = BrokerDirectory.load(path)
            made = configured.enrol(name for name in names if name not in configured.users)
            for file in made.values():  # apart from those for owners; the next rehearsal needs them
                file.rename(_invitations(path) / file.name)
            self._set_revoked(configured, names, False)
        self._say(f"enrolled {devices} devices ({PREFIX}-0 to {names[-1]})")
        self._stack.callback(self._revoke, names)
        return configured

    def _revoke(self, names: list[str]) -> None:
        path = self._settings.broker_dir.absolute()
        with BrokerDirectory.changing(path):
            self._set_revoked(BrokerDirectory.load(path), names, True)
        self._say("revoked the devices of the trial")

    @staticmethod
    def _set_revoked(configured: BrokerDirectory, names: list[str], revoked: bool) -> None:
        known = configured.users
        known |= {name: replace(known[name], revoked=revoked) for name in names}
        configured.write()
        configured.reload()

    def _start_collector(self) -> None:
        """Unless one runs on this data already."""
        data = self._settings.data_dir
        if examine(data).running:
            self._say("using the collector that runs already")
        else:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            page = () if self._own else ("--listen", f"127.0.0.1:{free_port()}")
            command = [*self._words("run"), "--quiet", *page]
            log = self._place / "collector.log"
            self._collector = Process("the collector", command, log, own_settings=self._own)
            self._stack.enter_context(self._collector)
            where = f"; its page: http://{page[1]}/" if page else ""
            self._say(f"started a collector{where}")
        limit = time.monotonic() + START_SECONDS
        while not examine(data).well:
            if self._collector is not None:
                self._collector.check_running()
            if time.monotonic() > limit:
                raise TestbedError(f"the collector is not well: {examine(data).finding}")
            time.sleep(0.2)

    def _need_broker(self) -> None:
        """mosquitto and the nodes of a cluster are not started by the collector."""
        if not self._own:
            return
        known, embedded = choose_broker(self._settings)
        url = known.required_broker()
        if embedded is None and not is_open(url.port, url.host):
            path = shlex.quote(str(self._settings.broker_dir))
            raise TestbedError(
                f"no broker answers at {url}; nothing was started or enrolled. Start it, as in: "
                f"mosquitto -c {path}/mosquitto.conf"
            )

    def _broker(self, secured: BrokerDirectory | None) -> tuple[str, Path | None]:
        """Where agents connect, as devices do if that can be reached from here; and where their
        invitations are."""
        if secured is None:
            return str(choose_broker(self._settings)[0].required_broker()), None
        url = secured.plan.url
        reachable = is_open(url.port, url.host)
        return str(url if reachable else secured.plan.local_url), _invitations(secured.path)

    def _try_link(self, campaign: Campaign, broker: str, invitations: Path) -> None:
        """What the owner of a device does: fetch the manifest over the broker by its link."""
        known = read_invitation(invitations / f"{PREFIX}-0{ENDING}").store(self._place / "link")
        policy = policy_for(campaign.manifest)
        with EdgeClient(
            self._place / "owner", policy=policy, credentials=known, credentials_for=[broker]
        ) as client:
            client.invitation(f"{broker}/{self._settings.namespace}/{campaign.manifest.full_name}")
        self._say("the join link works: the broker gives devices the manifest")

    # --- the trial -------------------------------------------------------------------------------

    def _watch(self, campaign: Campaign, rounds: int, agents: AgentProcesses) -> int:
        """Until that many rounds after the one that the agents joined in are sealed; the last."""
        schedule, devices = campaign.manifest.rounds, len(agents.drawn)
        last = min(schedule.count, (schedule.round_at(time.time()) or 0) + rounds) - 1
        self._say(f"{devices} agents joined; they report until round {last} is sealed")
        watch(campaign, last, devices, self._store, self._say, agents.check_running)
        return last

    def _store(self) -> AbstractContextManager[Store]:
        return closing(read_store(self._settings.data_dir, self._settings.store))

    def _report(
        self, campaign: Campaign, work: Work, last: int, devices: int, broker: str,
        secured: BrokerDirectory | None,
    ) -> bool:  # fmt: skip
        """What was tried, how many were counted, how long receipts took. Rounds after the last
        that was waited for do not count: the agents were stopped in them."""
        with self._store() as store:
            rounds = range(last + 1)
            found = campaign.manifest.attributes
            counted, drawn = 0, 0
            for number in rounds:
                tallies = store.tallies(campaign.id, number)
                counted += sum(tally.n for tally in tallies.values())
                drawn += sum(work.drawn[f"{number} {attribute.name}"] for attribute in found)
            results = [r for r in store.results(campaign.id) if r.round is None and not r.withheld]
        truth = known_truth(self._settings.data_dir, campaign) or {}
        bars = [
            low <= true <= high
            for result in results
            for low, high, true in zip(result.low, result.high, truth[result.attribute])
        ]
        auth = "without credentials"
        if secured is not None:
            auth = f"over TLS, each with a {secured.plan.auth} of its own"
        waits = sorted(work.waits) or [float("nan")]
        middle, late = waits[len(waits) // 2], waits[int(0.99 * (len(waits) - 1))]
        click.echo(f"Tried:     {devices} agents at {broker}, {auth}")
        click.echo(f"Counted:   {counted} of {drawn} reports in {len(rounds)} rounds, each once")
        if counted < drawn:
            click.echo(
                f"NOT counted: {drawn - counted} reports, drawn but not received in time. If this "
                "machine is busy, try fewer --devices or a longer --trial-round"
            )
        click.echo(f"Receipts:  after {middle:.1f} s in the median; 99 of 100 within {late:.1f} s")
        click.echo(f"Truth:     inside {sum(bars)} of {len(bars)} intervals of 95 %")
        click.echo(f"Took:      {time.monotonic() - self._began:.0f} s")
        return counted == drawn

    def wait_for_interrupt(self) -> None:
        click.echo("\nEverything stays up until you press Ctrl-C.")
        while self._collector is None or self._collector.is_running:
            time.sleep(1)

    # --- the collector's commands ----------------------------------------------------------------

    def _campaign(self, name: str) -> Campaign:
        with self._store() as store:
            return store.campaign(name)

    def _words(self, verb: str) -> list[str]:
        """A command of the collector on this data; the user's configuration is for their own."""
        program = str(Path(sys.executable).parent / "allomfree-collector")
        config = () if self._own else ("--config", os.devnull)
        return [program, verb, *config, "--data-dir", str(self._settings.data_dir)]

    def _command(self, verb: str, *words: str | Path) -> str:
        line = [*self._words(verb), *map(str, words)]
        environ = None if self._own else {"PATH": os.environ["PATH"], "HOME": str(self._place)}
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environ)
        if done.returncode:
            raise TestbedError(f"{verb}: {done.stderr.strip().removeprefix('error: ')}")
        return done.stdout.rstrip()

    def _say(self, text: str) -> None:
        click.echo(f"[{time.monotonic() - self._began:5.1f} s] {text}")


def _invitations(broker: Path) -> Path:
    """Where the invitations of the trial's devices are kept."""
    place = broker / "invitations" / PREFIX
    place.mkdir(mode=0o700, exist_ok=True)
    return place


if __name__ == "__main__":
    main()

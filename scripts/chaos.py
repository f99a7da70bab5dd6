"""Let everything fail, and compare every count."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
import click

from faults.run import cluster_size, collector_size, run
from faults.sites import BROKERS, EMBEDDED, ClusterSite, CollectorSite, Site
from testbed.processes import TestbedError

SHOWN = 20
LOCAL = (
    "--tls needs --broker nats or mosquitto: the embedded broker of a fresh directory is on this "
    "machine only. Nothing was started"
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--minutes",
    type=click.FloatRange(0.4, 600),
    default=5.0,
    help="How long faults happen; recovery takes another minute or two.",
)
@click.option("--seed", type=int, default=1, help="Which faults, and when.")
@click.option("--broker", "kind", type=click.Choice([EMBEDDED, *BROKERS]), default=EMBEDDED)
@click.option("--tls", is_flag=True, help="Encrypt and verify every connection.")
@click.option(
    "--cluster",
    is_flag=True,
    help="Instead, three NATS nodes with TLS, PostgreSQL and three workers; three rounds.",
)
@click.option(
    "--devices",
    type=click.IntRange(10, 4_000),
    default=2_000,
    help="Bulk devices in the larger campaign, a tenth of them in the smaller; with --cluster, in "
    "each of 17 campaigns.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Keep all files here.  [default: a temporary one]",
)
def main(
    minutes: float,
    seed: int,
    kind: str,
    tls: bool,
    cluster: bool,
    devices: int,
    directory: Path | None,
) -> None:
    """Kill, pause, cut off, slow down and mislead a broker, a collector and real agents; then
    compare every count with what the devices know. Exit status 1 if anything was lost or counted
    twice."""
    if tls and kind == EMBEDDED:
        raise click.UsageError(LOCAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the others too
    began = time.monotonic()
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="allomfree-chaos-")
        work = directory or Path(stack.enter_context(temporary))
        work.mkdir(parents=True, exist_ok=True)
        site: Site = ClusterSite(work) if cluster else CollectorSite(work, kind, tls=tls)
        size = (cluster_size if cluster else collector_size)(minutes, devices)
        try:
            happened, found = run(
                site,
                size,
                seed,
                lambda text: click.echo(f"[{time.monotonic() - began:6.1f} s] {text}"),
            )
        except TestbedError as error:
            raise click.ClickException(str(error)) from None
    click.echo(", ".join(f"{n} x {name}" for name, n in sorted(happened.items())))
    click.echo("".join(f"  FAIL  {fault}\n" for fault in found.faults[:SHOWN]), nl=False)
    click.echo(
        f"{happened.total()} faults, seed {seed}: {found.counted:,} reports counted, "
        f"{found.owed:,} had to be, {found.unsure:,} could be; "
        f"{len(found.faults)} lost, counted twice or changed."
    )
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()

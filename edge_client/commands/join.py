"""`join`: read what a campaign asks, and agree to it or not."""

from __future__ import annotations

from pathlib import Path

import click

from edge_client.commands.common import agree_or_exit, open_client
from edge_client.commands.options import command
from edge_client.errors import SettingsError
from edge_client.heartbeat import last_heartbeat
from edge_client.settings import Settings
from protocol_spec import DEFAULT_NAMESPACE, Manifest, ManifestError
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.commands import show as print_facts


@command
@click.argument("address", required=False)
@click.option(
    "--manifest", type=click.Path(path_type=Path), help="Manifest file instead of ADDRESS."
)
@click.option("--broker", help="With --manifest: where to report, as mqtts://host.")
@click.option("--namespace", default=DEFAULT_NAMESPACE, help="With --manifest: the topics' root.")
@click.option("--yes", is_flag=True, help="Agree without being asked, for fleets.")
@click.option("--preview", is_flag=True, help="Only show what joining would mean.")
@click.option("--timeout", default=20.0, show_default=True, help="Seconds to wait for the broker.")
@AS_JSON
def join(
    settings: Settings,
    address: str | None,
    manifest: Path | None,
    broker: str | None,
    namespace: str,
    yes: bool,
    preview: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Read what a campaign asks, and agree to it or not.

    \b
    allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d
    allomfree-edge join --manifest heat.toml --broker mqtt://localhost --yes
    """
    from edge_client.show import statement, text  # noqa: PLC0415 - `run` does not need it

    _check_one_way_to_join(address, manifest, broker)
    loaded = None if manifest is None else _load_manifest(manifest)
    with open_client(settings) as client:
        invitation = client.invitation(
            address, manifest=loaded, broker=broker, namespace=namespace, timeout=timeout
        )
        facts = statement.invitation_facts(invitation, settings.username)
        if preview:
            print_facts(facts, as_json, text.invitation_text)
            return
        if not (as_json and yes):  # with --json, standard output is one object
            click.echo(text.invitation_text(facts), err=as_json)
        if not yes:
            agree_or_exit("\nDo you agree?", "Not joined; nothing was drawn, sent or spent.")
        joined = statement.joined_facts(client.join(invitation))
        running = last_heartbeat(settings.state_dir)
        next_step = "The running agent takes it up." if running else "Next: allomfree-edge run"
        print_facts(joined, as_json, lambda facts: f"{text.joined_text(facts)}\n{next_step}")


def _check_one_way_to_join(address: str | None, manifest: Path | None, broker: str | None) -> None:
    if address is None and manifest is None:
        raise SettingsError(
            "which campaign? Give its address, as in allomfree-edge join "
            "mqtts://broker.example/allomfree/home-heat-1a2b3c4d, or --manifest FILE and --broker"
        )
    if (manifest is None) != (broker is None):
        raise SettingsError("--manifest and --broker go together: what is asked, and where to send")
    if address is not None and manifest is not None:
        raise SettingsError("give an ADDRESS, or --manifest and --broker, not both")


def _load_manifest(path: Path) -> Manifest:
    try:
        return Manifest.from_file(path)
    except ManifestError as error:
        raise SettingsError(f"{path} is not a valid manifest; nothing was sent.\n{error}") from None

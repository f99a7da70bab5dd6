"""`join`: read what a campaign asks, and agree to it or not."""

from __future__ import annotations

from pathlib import Path

import click

from edge_client.commands.asking import Asking
from edge_client.commands.common import naming_the_file, open_client
from edge_client.commands.options import command
from edge_client.errors import SettingsError
from edge_client.reading import check_silence
from edge_client.settings import Settings
from protocol_spec import DEFAULT_NAMESPACE, Manifest, ManifestError
from protocol_spec.programs.commands import AS_JSON


@command
@click.argument("address", required=False)
@click.option(
    "--manifest", type=click.Path(path_type=Path), help="Manifest file instead of ADDRESS."
)
@click.option("--broker", help="With --manifest: where to report, as mqtts://host.")
@click.option(
    "--digest",
    metavar="HEX",
    help="The manifest's whole digest, where ADDRESS does not name all of it.",
)
@click.option("--namespace", default=DEFAULT_NAMESPACE, help="With --manifest: the topics' root.")
@click.option("--yes", is_flag=True, help="Agree without being asked, for fleets.")
@click.option("--preview", is_flag=True, help="Only show what joining would mean.")
@click.option("--again", is_flag=True, help="Join although this device was forgotten there.")
@click.option(
    "--accept-silence",
    metavar="CAMPAIGN",
    help="Its name: join a campaign of the old format although silence may tell something.",
)
@click.option("--timeout", default=20.0, show_default=True, help="Seconds to wait for the broker.")
@AS_JSON
def join(
    settings: Settings,
    address: str | None,
    manifest: Path | None,
    broker: str | None,
    digest: str | None,
    namespace: str,
    yes: bool,
    preview: bool,
    again: bool,
    accept_silence: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Read what a campaign asks, and agree to it or not.

    \b
    allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f809
    allomfree-edge join --manifest heat.toml --broker mqtt://localhost --yes
    """
    _check_one_way_to_join(address, manifest, broker)
    loaded = None if manifest is None else _load_manifest(manifest)
    with open_client(settings) as client, naming_the_file(settings):
        invitation = client.invitation(
            address,
            manifest=loaded,
            broker=broker,
            namespace=namespace,
            digest=digest,
            timeout=timeout,
            again=again,
            check=not preview,
        )
        asking = Asking(client, settings, invitation, as_json)
        if preview:
            asking.preview()
            client.check(invitation, again=again)
            return
        asking.tell(quiet=as_json and yes)  # with --json, standard output is one object
        if invitation.manifest.campaign not in (m.name for m in client.memberships()):
            check_silence(invitation.manifest, accept_silence)
        if not yes:
            asking.ask()
        asking.remember()
        asking.joined(client.join(invitation, again=again, accept_silence=accept_silence))


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

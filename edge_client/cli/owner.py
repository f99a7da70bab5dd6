"""What owners decide (pause, resume, leave, forget) and inspect (show, status, page)."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from edge_client.cli import COMMANDS
from edge_client.cli.common import CAMPAIGN, agree_or_exit, command, open_client, open_device
from edge_client.language import ENGLISH, in_language, say
from edge_client.settings import Settings
from protocol_spec.programs.cli import AS_JSON, print_facts


def _decision(verb: str, done: str) -> click.Command:
    """A command that calls the client's method of the same name for one campaign."""

    def decide(settings: Settings, campaign: str | None) -> None:
        with open_client(settings) as client:
            click.echo(done.format(getattr(client, verb)(campaign).name))

    decide.__name__ = verb
    decide.__doc__ = f"{COMMANDS.lines[verb]}\n\n\b\nallomfree-edge {verb} home-heat"
    return command(CAMPAIGN(decide))


pause = _decision("pause", "Paused {}; nothing is drawn or sent until resumed.")
resume = _decision("resume", "Resumed {}.")
leave = _decision("leave", "Left {}. What was spent stays spent; joining again costs nothing more.")


@command
@CAMPAIGN
@click.option(
    "--lost", is_flag=True, help="Accept that the memory is lost, damaged or rolled back."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout", default=10.0, show_default=True, help="Seconds to wait for the collector's answer."
)
def forget(settings: Settings, campaign: str | None, lost: bool, yes: bool, timeout: float) -> None:
    """Withdraw what can be withdrawn, wipe the memory, and verify; the ledger keeps its line.

    \b
    allomfree-edge forget home-heat
    allomfree-edge forget --lost
    """
    warning = "Forgetting cannot be undone, and joining again is charged in full. Go on?"
    final = "The collector will not count this device in the campaign again.\n"
    if not lost:
        with open_device(settings) as device:
            device.find(campaign)  # without such a campaign there is nothing to ask
    if not yes:
        agree_or_exit(warning if lost else final + warning, "Nothing was changed.")
    if not lost:
        with open_client(settings, exclusive=True) as client:
            name, answer = client.forget(campaign, timeout=timeout)
        click.echo(f"Forgot {name} here; no trace is left. The collector {answer}.")
        return
    from edge_client.client import accept_loss  # noqa: PLC0415 - rarely needed

    kept = accept_loss(settings.state_dir, settings.policy).items()
    sources = [f"{epsilon:g} on {'every source' if n == '*' else n}" for n, epsilon in kept]
    total = ", ".join(sources) or "nothing"
    click.echo(f"Started an empty memory in {settings.state_dir}. Stays booked as spent: {total}.")


@command
@CAMPAIGN
@click.option(
    "--html", metavar="FILE", help="Write it as a page for a browser; `-` prints the page."
)
@AS_JSON
def show(settings: Settings, campaign: str | None, html: str | None, as_json: bool) -> None:
    """Show what left, what is queued, what never leaves, and the ledger.

    \b
    allomfree-edge show
    allomfree-edge show home-heat --json
    allomfree-edge show --html statement.html
    """
    from edge_client import statement, text  # noqa: PLC0415 - `run` does not need it

    language = ENGLISH if as_json else settings.owner_language
    with open_device(settings) as device, in_language(language):
        found = [device.find(campaign)] if campaign else device.memberships()
        if html is None:
            print_facts(statement.show_facts(device, found), as_json, text.show_text)
            return
        from edge_client import page  # noqa: PLC0415

        content = page.statement_page(device, found)
        if html == "-":
            click.echo(content, nl=False)
        else:
            page.write_page(Path(html), content)
            click.echo(f"wrote {html}; only you can read it", err=True)


@command
@AS_JSON
def status(settings: Settings, as_json: bool) -> None:
    """Show the agent's status.

    \b
    allomfree-edge status
    allomfree-edge status --json
    """
    from edge_client import statement, text  # noqa: PLC0415 - `run` does not need it

    with open_device(settings) as device:
        print_facts(statement.status_facts(device), as_json, text.status_text)


@command
@CAMPAIGN
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8733,
    show_default=True,
    help="Port on this machine; 0 takes any that is free.",
)
def page(settings: Settings, campaign: str | None, port: int) -> None:
    """Show the statement as a page in a browser on this machine, until stopped.

    \b
    allomfree-edge page
    allomfree-edge page home-heat --port 0
    """
    from edge_client.page import PageServer, statement_page  # noqa: PLC0415 - only for this

    context = click.get_current_context()

    def render() -> str:
        with (
            context.scope(cleanup=False),
            open_device(settings) as device,
            in_language(settings.owner_language),
        ):
            found = [device.find(campaign)] if campaign else device.memberships()
            return statement_page(device, found, served=True)

    render()  # an error is reported here, before anybody looks
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with PageServer(render, port) as server:
        with in_language(settings.owner_language):
            click.echo(say("Open {url} on this machine; Ctrl+C ends it.", url=server.url))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo(err=True)

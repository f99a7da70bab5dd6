"""`operator-key`: the key that an operator signs manifests with."""

from __future__ import annotations

import sys
from typing import Literal, TypedDict

import click

from collector.commands.options import command, show
from collector.data_dir import make_private
from collector.operator_key import OperatorKey
from collector.settings import Settings
from protocol_spec.programs.commands import AS_JSON

Action = Literal["show", "create", "rotate"]


class OperatorFacts(TypedDict):
    """What `operator-key --json` prints; the previous key only after `rotate`."""

    operator: str
    file: str
    previous: str | None


@command
@click.argument("action", type=click.Choice(("show", "create", "rotate")), default="show")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@AS_JSON
def operator_key(settings: Settings, action: Action, yes: bool, as_json: bool) -> None:
    """Make, show or replace the key that signs your manifests.

    Owners who list the public key accept your campaigns and no one else's.

    \b
    allomfree-collector operator-key create
    allomfree-collector operator-key
    """
    key = OperatorKey(settings.data_dir)
    before = key.public
    if action == "create":
        make_private(settings.data_dir)
        key.create()
    elif not before:
        raise key.no_key()
    elif action == "rotate":
        _confirm(before, yes)
        key.rotate()
    previous = before.hex() if action == "rotate" else None
    facts: OperatorFacts = {
        "operator": key.public.hex(),
        "file": str(key.path),
        "previous": previous,
    }
    show(facts, as_json, operator_text)


def _confirm(before: bytes, yes: bool) -> None:
    question = (
        f"Replace {before.hex()} for ever? Owners who list it refuse what the new key signs, until "
        "they list the new one."
    )
    if not yes and not click.confirm(question, default=False, err=True):
        click.echo("Nothing was changed.", err=True)
        sys.exit(1)


def operator_text(facts: OperatorFacts) -> str:
    """The public key, and what it is for."""
    replaced = [f"Replaced {facts['previous']}"] if facts["previous"] else []
    return "\n".join(
        [
            *replaced,
            f"Operator {facts['operator']}",
            f"Its secret is in {facts['file']}: back it up, and show it to nobody.",
            "In each manifest (format 2), before [rounds]:",
            f'    operator = "{facts["operator"]}"',
            "Publish the key where owners trust you. They add to their edge.toml:",
            "    [policy]",
            f'    operators = {{ YOU = "{facts["operator"]}" }}',
        ]
    )

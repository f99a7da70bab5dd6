"""What an owner reads before agreeing: the invitation, and what is missing here to take part."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from edge_client.language import say, say_count
from edge_client.settings import USERS_FILE
from edge_client.show.facts import InvitationFacts, SourceFacts
from edge_client.show.text import WIDTH, invitation_text


def asked_text(facts: InvitationFacts, config: Path | None) -> str:
    """The invitation, then the sources that cannot be read, if there are any."""
    missing = facts["sources"]
    told = [sources_text(missing, config)] if missing else []
    return "\n\n".join([invitation_text(facts), *told])


def sources_text(sources: Sequence[SourceFacts], config: Path | None) -> str:
    """Each with what is wrong, and the lines to add. No value is in it, nor does any change it."""
    lines = [
        say_count(
            len(sources),
            "Not ready: one of these questions has no source that can be read on this device.",
            "Not ready: {count} of these questions have no source that can be read on this device.",
        ),
        *(f"  {each['attribute']}: {each['problem']}" for each in sources),
    ]
    to_add = [each["lines"] for each in sources if each["lines"]]
    if to_add:
        file = config or USERS_FILE
        lines += [say("Add to {file}, and write your own:", file=file), "", "\n\n".join(to_add), ""]
    told = say(
        "Add it before the first round: without it this device answers as one whose value is none "
        "of the others, and that answer may be kept for life."
    )
    return "\n".join([*lines, *textwrap.wrap(told, WIDTH)])

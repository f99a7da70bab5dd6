"""A value's place in its domain, and what is answered where there is none.

Claim P1: whether a source works, and whether what it gives is in the domain, is as private as the
value itself. So nothing here says which it was: a source that fails, raises or gives nonsense is
one case, without a message, and it is answered for wherever that is possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from edge_client.errors import PolicyRefusal
from edge_client.language import say
from protocol_spec import Attribute, Entropy, Manifest
from protocol_spec import random_below as below

ReadValue = Callable[[str], object]


def place_of(attribute: Attribute, read: ReadValue) -> int | None:
    """Where the value stands in the domain; None if there is no usable value, for any reason."""
    try:
        return attribute.index_of(read(attribute.name))
    except Exception:  # noqa: BLE001 - a source is anybody's code, and why it failed is private
        return None


def stand_in(attribute: Attribute, entropy: Entropy) -> int | None:
    """What a device without a usable value answers before it has any memo; None for nothing.

    The value that stands for everything else. Bins from -inf to inf have none: there it is a bin
    drawn uniformly, which is as private as any value and favours none of them.
    """
    if attribute.otherwise is not None:
        return attribute.otherwise
    return below(attribute.k, entropy) if _is_endless(attribute) else None


def _is_endless(attribute: Attribute) -> bool:
    edges = attribute.edges
    return edges is not None and math.isinf(edges[0]) and math.isinf(edges[-1])


def silent_about(manifest: Manifest) -> list[str]:
    """The attributes that some value has no answer to: a device that holds it is silent at first.

    Only campaigns of format 1 have such.
    """
    return [a.name for a in manifest.attributes if a.otherwise is None and not _is_endless(a)]


def silence_text(manifest: Manifest) -> str:
    """What an owner should know before joining such a campaign; empty for all others."""
    names = silent_about(manifest)
    if not names:
        return ""
    return say(
        "What noise cannot hide: silence. This campaign is of an old format, and not every value "
        "has an answer in it ({names}). Until yours first is one of the answers, nothing is sent, "
        "and anyone who watches can see that. From then on a report leaves in every round, from "
        "the last value that had an answer.",
        names=", ".join(names),
    )


def check_silence(manifest: Manifest, accepted: str | None) -> None:
    """Refuse a campaign in which silence tells, unless its name shows that the owner knows."""
    why, name = silence_text(manifest), manifest.campaign
    if why and accepted != name:
        raise PolicyRefusal(
            f"{name} was not joined; nothing was drawn, sent or spent. {why} If you agree to that, "
            f"add --accept-silence {name}; better, ask its owner for a campaign of format 2"
        )

"""Home Assistant's templates, rendered as it does."""

from __future__ import annotations

import json
import struct

import jinja2


def rendered(template: str, payload: bytes) -> str:
    """A template as Home Assistant renders it: with the bytes, and with the JSON they may be."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - no HTML
    environment.filters["unpack"] = lambda value, form, offset=0: struct.unpack_from(
        form, value, offset
    )[0]
    values = {"value": payload, "value_json": None}
    if payload[:1] == b"{":
        values["value_json"] = json.loads(payload)
    return environment.from_string(template).render(values)

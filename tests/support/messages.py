"""Every message that an owner can read, as the code says it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import edge_client
from edge_client.agent import Wait
from edge_client.records import Fate, Status
from edge_client.store import LOSS_REASON, REASONS

PACKAGE = Path(edge_client.__file__).parent


def literals(call: ast.Call) -> list[str]:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    texts = {"say": call.args[:1], "message": call.args[:1], "say_count": call.args[1:]}
    return [
        text.value
        for text in texts.get(name, [])
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]


def said() -> dict[str, tuple[str, ...]]:
    """Every message of the agent: as the code says it, and as its words for states are."""
    words = (
        *get_args(Status),
        *get_args(Fate),
        *REASONS.values(),
        *map(str, Wait),
        LOSS_REASON,
    )
    found: dict[str, tuple[str, ...]] = {word: (word,) for word in words}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            texts = literals(node) if isinstance(node, ast.Call) else []
            found |= {texts[0]: tuple(texts)} if texts else {}
    return found


MESSAGES = said()

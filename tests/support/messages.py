"""Every message that an owner can read, as the code says it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import edge_client
from edge_client.agent import Wait
from edge_client.records import Fate, Status
from edge_client.store import LOSS_REASON
from protocol_spec import explanation
from protocol_spec.mechanisms import MECHANISMS

PACKAGE = Path(edge_client.__file__).parent
EXPLANATION = Path(explanation.__file__)


def literals(call: ast.Call) -> list[str]:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    one, two = call.args[:1], call.args[1:]
    texts = {"say": one, "message": one, "phrase": one, "phrase_odds": one}
    texts |= {"say_count": two, "phrase_count": two, "phrase_sets": call.args[:2]}
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
        *(mechanism.booked_as for mechanism in MECHANISMS.values()),
        *map(str, Wait),
        LOSS_REASON,
    )
    found: dict[str, tuple[str, ...]] = {word: (word,) for word in words}
    mechanisms = EXPLANATION.with_name("mechanisms")
    for file in (*PACKAGE.rglob("*.py"), EXPLANATION, *mechanisms.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            texts = literals(node) if isinstance(node, ast.Call) else []
            found |= {texts[0]: tuple(texts)} if texts else {}
    return found


MESSAGES = said()

"""A10: the programs have one way out, the gates of `protocol_spec.programs.output`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from collector.commands import main as collector
from edge_client.commands import main as edge
from protocol_spec.programs.commands import Program
from tests.support.source import PRODUCT, Source, assert_none, sources

# Where the streams are put behind gates, and a look at what kind of terminal there is.
ALLOWED = {
    "protocol_spec/programs/output.py",
    "protocol_spec/programs/logs.py",
    "collector/commands/reading.py",
    "collector/commands/campaigns.py",
}
OTHER_WAYS = ("/dev/tty", "/dev/stdout", "/dev/stderr")


def ways_out(source: Source) -> Iterator[tuple[int, str]]:
    """Streams of this process, and handlers of logs that write by themselves."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"):
                yield node.lineno, name
            if name in ("logging.basicConfig", "logging.StreamHandler", "logging.lastResort"):
                yield node.lineno, name
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "print":
                yield node.lineno, "print"
        elif isinstance(node, ast.Constant) and node.value in OTHER_WAYS:
            yield node.lineno, str(node.value)


def test_nothing_in_the_product_writes_to_a_stream_by_itself() -> None:
    assert_none(
        f"{source.shown}:{line} uses {what}"
        for source in sources(*PRODUCT)
        if source.shown not in ALLOWED
        for line, what in ways_out(source)
    )


def test_both_programs_go_through_the_gates() -> None:
    assert isinstance(edge, Program)
    assert isinstance(collector, Program)


def test_json_for_a_terminal_is_made_in_one_place() -> None:
    """`json.dumps` leaves some controls as they are; commands use `output.as_json`."""
    assert_none(
        f"{source.shown}:{found.line} imports json"
        for source in sources("edge_client/commands", "collector/commands")
        for found in source.imports
        if found.module == "json"
    )

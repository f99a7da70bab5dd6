"""Reading `protocol_spec/README.md`: its tables, fences and examples."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from protocol_spec import Manifest, calibrate
from tests.support.harness import ROOT

FOLDER = ROOT / "protocol_spec"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
DEVICE = "k7f3-0b2q"


def rows(*header: str) -> list[list[str]]:
    """The cells of the one table with that header."""
    [table] = re.findall(
        rf"^\| {re.escape(' | '.join(header))} \|\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.M
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def fence(info: str) -> str:
    [inside] = re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", TEXT, re.M | re.S)
    return str(inside)


def hex_of(name: str) -> bytes:
    """An example: hex pairs at the start of each line, a remark after three blanks."""
    lines = fence(f"hex {name}").splitlines()
    return b"".join(bytes.fromhex(line.split("   ")[0]) for line in lines)


def bare(cell: str) -> str:
    return cell.strip("`")


MANIFEST = Manifest.from_toml(fence("toml"))


# --- Calculating what the specification's formulas say, as they stand in its text.


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": lambda value: value.sqrt(),
    "ln": lambda value: value.ln(),
    "exp": lambda value: value.exp(),
    "max": max,
    "abs": abs,
}
Names = dict[str, Decimal]


def _value(node: ast.expr, names: Names) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return Decimal(number)
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_value(argument, names) for argument in arguments))
    raise AssertionError(ast.dump(node))


def calculated(lines: Sequence[str], names: Names) -> Names:
    """The names given and those that formulas such as "ps = p1*p2" add to them."""
    known = dict(names)
    for line in lines:
        target, formula = line.split(" = ")
        tree = ast.parse(formula.strip().replace("^", "**"), mode="eval").body
        known[target.strip()] = _value(tree, known)
    return known


def chances(protocol: str, k: int, eps_inf: float, eps_1: float, method: str) -> Names:
    """p1, q1, p2, q2 and all else of section 8, as its table says."""
    wanted = f"{protocol}, `{method}`" if (protocol, method) == ("L-GRR", "paper") else protocol
    [row] = [row for row in rows("protocol", "RR1", "RR2", "largest eps_1") if row[0] == wanted]
    [letters] = re.findall(r"Write (`a = .*`)\.", TEXT)
    given = {"k": Decimal(k), "eps_inf": Decimal(eps_inf), "eps_1": Decimal(eps_1)}
    if protocol in ("L-GRR", "L-SS"):
        given["d"] = Decimal(calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1).size)
    names = calculated(re.findall(r"`([^`]+)`", letters), given)
    steps = [step for cell in row[1:3] for step in bare(cell).split("; ")]
    names = calculated(steps, names)
    if row[3]:
        names = calculated([f"limit = {bare(row[3])}"], names)
    return calculated(fence("formulas support").splitlines(), names)

"""What the simulator shows: results where they were asked for, a summary for the person."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import click

from simulation import figure as pictures
from simulation.errors import SimulationError
from simulation.records import FACTS, Pair, Row, Run, pooled, score, write


def check(figure: Path | None, store: Path | None) -> None:
    """What would fail after the run fails before it."""
    if figure is not None and figure.suffix not in (".svg", ".png"):
        raise SimulationError(f"--figure {figure}: the name must end in .svg or .png")
    if store is not None and (store / FACTS).exists():
        raise SimulationError(f"{store} already holds a run; choose another directory for --store")


def show(
    run: Run, *, form: str, output: Path | None, figure: Path | None, store: Path | None
) -> None:
    """Results on standard output or in a file, the summary on standard error."""
    if store is not None:
        run.save(store)
    text = write(run.rows, form)
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SimulationError(f"{output} cannot be written: {error.strerror}") from None
    if figure is not None:
        pictures.draw(run.rows, figure, title(run))
    click.echo(summary(run), err=True)


def title(run: Run) -> str:
    """One line that says what was simulated."""
    facts = run.facts
    rounds = "1 round" if facts["rounds"] == 1 else f"{facts['rounds']} rounds"
    people = f"{facts['devices']:,} devices, {', '.join(facts['population'])}"
    way = facts.get("reporting", "memoized")
    name = facts["campaign"] if way == "memoized" else f"{facts['campaign']} ({way})"
    return f"{name}: {people}, {rounds} (seed {facts['seed']})"


def summary(run: Run) -> str:
    """All rounds together, a line for each attribute."""
    outcomes = ", ".join(f"{n:,} {name}" for name, n in run.facts["outcomes"].items())
    lines = [title(run), f"{run.facts['depth']}: {outcomes} in {run.facts['seconds']:g} s"]
    together = groupby(pooled(run.rows), key=itemgetter("attribute"))
    groups = [(name, list(rows)) for name, rows in together]
    width = max([len(name) for name, _ in groups] or [0])
    lines.append(
        f"{'attribute':<{max(width, 9)}}  protocol  values      devices  error %  projected %  "
        "largest |z|  in intervals"
    )
    return "\n".join(lines + [f"{name:<{max(width, 9)}}  {_line(rows)}" for name, rows in groups])


def _line(rows: Sequence[Row]) -> str:
    first = rows[0]
    head = f"{first['protocol']:<8} {len(rows):>7} {first['devices']:>12,}"
    if first["withheld"]:
        return f"{head}  withheld: fewer than {first['min_reports']} devices"
    made = score(rows)
    inside = sum(row["low_all"] <= row["truth"] <= row["high_all"] for row in rows)
    return (
        f"{head} {100 * made.mse**0.5:>8.2f} {100 * made.mse_projected**0.5:>12.2f} "
        f"{made.largest_z:>12.1f}  {inside:>6} of {len(rows)}"
    )


def comparison(pairs: Sequence[Pair], names: tuple[Path, Path]) -> str:
    """Two runs, a line for each histogram."""
    head = f"{'attribute':<24} {'round':>6} {'n':>21} {'MSE':>19} {'rms z':>11} {'apart':>6}"
    lines = [f"left {names[0]}, right {names[1]}", head]
    for pair in pairs:
        number = "all" if pair.round is None else str(pair.round)
        ours, theirs = pair.left, pair.right
        lines.append(
            f"{pair.attribute:<24} {number:>6} {ours.n:>10} {theirs.n:>10} {ours.mse:9.2e} "
            f"{theirs.mse:9.2e} {ours.rms_z:5.2f} {theirs.rms_z:5.2f} {pair.apart:6.2f}"
            f"{'' if pair.agree else '  !'}"
        )
    limit = max(pair.limit for pair in pairs)
    verdict = "agree" if all(pair.agree for pair in pairs) else "do NOT agree"
    lines.append(f"The runs {verdict}: chance keeps every difference below {limit:.2f}.")
    return "\n".join(lines)

"""The loss of t reports as a picture: a curve that climbs to its ceiling, and the present point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from edge_client.language import number, say, say_count

WIDTH: Final = 640
HEIGHT: Final = 220
LEFT: Final = 46
RIGHT: Final = WIDTH - 16
TOP: Final = 30
BASE: Final = HEIGHT - 34
STEPS: Final = 60
NEARLY_ALL: Final = 0.98


class Loss(NamedTuple):
    """What t reports tell, and what no number of them exceeds."""

    epsilon_after: Callable[[int], float]
    ceiling: float


def curve_svg(loss: Loss, most: int, reports: Sequence[int]) -> str:
    """The loss from no report to about as many as matter; a dot for each memo drawn.

    `most` is the number of reports that there can be.
    """
    last = _horizon(loss, most, max(reports, default=0))
    ceiling = loss.ceiling

    def x(t: int) -> float:
        return LEFT + t / last * (RIGHT - LEFT)

    def y(epsilon: float) -> float:
        return BASE - epsilon / ceiling * (BASE - TOP)

    times = sorted({round(i * last / STEPS) for i in range(STEPS + 1)} | {0, 1})
    curve = [(x(t), y(loss.epsilon_after(t))) for t in times]
    dots = [(x(t), y(loss.epsilon_after(t))) for t in reports]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in curve)
    below = f"{x(0):.1f},{BASE} {points} {x(last):.1f},{BASE}"
    title, told = say("Privacy spent, by number of reports"), _told(loss, reports)
    never = say("never above epsilon {ceiling}", ceiling=number(ceiling))
    end = say_count(last, "{count} report", "{count} reports")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{title}</title><desc>{told}</desc>"
        f'<polygon class="spent" points="{below}"/>'
        f'<line class="axis" x1="{LEFT}" y1="{BASE}" x2="{RIGHT}" y2="{BASE}"/>'
        f'<line class="ceiling" x1="{LEFT}" y1="{TOP}" x2="{RIGHT}" y2="{TOP}"/>'
        f'<polyline class="curve" points="{points}"/>'
        f"{''.join(_dot(*dot) for dot in dots)}"
        f'<text x="{LEFT}" y="{TOP - 10}">{never}</text>'
        f'<text x="{LEFT - 8}" y="{TOP + 4}" text-anchor="end">{number(ceiling)}</text>'
        f'<text x="{LEFT - 8}" y="{BASE + 4}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{BASE + 20}">0</text>'
        f'<text x="{RIGHT}" y="{BASE + 20}" text-anchor="end">{end}</text>'
        f"{_label(*dots[-1], reports[-1]) if len(dots) == 1 else ''}</svg>"
    )


def _horizon(loss: Loss, rounds: int, most: int) -> int:
    """Where to end: the curve is nearly flat, the present is on it, and rounds are not exceeded."""
    flat = 1
    while flat < rounds and loss.epsilon_after(flat) < NEARLY_ALL * loss.ceiling:
        flat *= 2
    return max(1, min(rounds, max(flat, most + most // 4 + 1)), most)


def _told(loss: Loss, reports: Sequence[int]) -> str:
    ceiling = number(loss.ceiling)
    if not reports:
        return say("It climbs to {ceiling}; nothing was drawn yet.", ceiling=ceiling)
    points = ", ".join(
        say("{epsilon} after {reports}", epsilon=number(loss.epsilon_after(t), ".4f"), reports=t)
        for t in reports
    )
    return say(
        "It climbs to {ceiling} and never beyond; so far {points}.", ceiling=ceiling, points=points
    )


def _dot(x: float, y: float) -> str:
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'


def _label(x: float, y: float, t: int) -> str:
    """To the right of the dot, where the curve is above it; at the end, well below."""
    if x < RIGHT - 230:  # on a telephone its letters are larger
        place = f'x="{x + 10:.1f}" y="{y + 22:.1f}"'
    else:
        place = f'x="{x:.1f}" y="{y + 36:.1f}" text-anchor="end"'
    you = say("you, after {reports}", reports=number(t, ",d"))
    return f'<text class="now" {place}>{you}</text>'

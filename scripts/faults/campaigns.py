"""What is asked. In bulk campaigns every device has a value of its own: a loss shows as a counter
of 0, a double as a counter of 2."""

from __future__ import annotations

from typing import Final

from protocol_spec import Manifest, make_report

AGENTS: Final = "agents"


def bulk_manifest(slug: str, devices: int, first: int, period: int, count: int) -> Manifest:
    """As many values as devices. Reports may come for one more period after a round."""
    values = ", ".join(f'"v{number}"' for number in range(devices))
    return _manifest(
        slug, first, period, count, period, f'values = [{values}]\nprotocol = "L-OSUE"'
    )


def agents_manifest(first: int, period: int, count: int) -> Manifest:
    """For real agents: reports may come for a day, so every one can be compared at the end."""
    return _manifest(AGENTS, first, period, count, 86_400, 'values = ["red", "green", "blue"]')


def _manifest(slug: str, first: int, period: int, count: int, grace: int, asked: str) -> Manifest:
    return Manifest.from_toml(
        f"""
        format = 1
        slug = "{slug}"
        title = "Everything fails"
        purpose = "Show that nothing is lost"
        owner = "The chaos command"
        contact = "nobody@example.org"
        eps_inf = 1.0
        eps_1 = 0.5
        min_reports = 2
        [rounds]
        first = {first}
        period = {period}
        count = {count}
        grace = {grace}
        [[attributes]]
        name = "own"
        question = "Which one is yours?"
        {asked}
        """
    )


def bulk_name(number: int) -> str:
    """A bulk device's name in topics."""
    return f"bulk-{number}"


def bulk_report(manifest: Manifest, number: int, device: int) -> bytes:
    """A bulk device's report: its own value and nothing else."""
    answer = manifest.body_formats[0].encode(device)
    return make_report(manifest, number, 0, answer).encode()

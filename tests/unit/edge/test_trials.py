"""In a trial (M117) a device makes its value up: nothing of its owner's is read or charged."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from edge_client.policy import Policy, used
from protocol_spec import Manifest, made_up_frequencies, made_up_value
from tests.support.campaigns import manifest_text, read_manifest
from tests.support.command_line import Cli, facts_of
from tests.support.edge import (
    DAY,
    FIRST,
    FakeClock,
    Joined,
    agree,
    draw_rounds,
    ledger_of,
    memos_of,
    only,
    rows,
)
from tests.support.protocol.entropy import seeded

STRICT = Policy(max_eps_inf=0.1, lifetime_budget=0.0, sources=(), total_budget=0.0, min_period=1)


def trial_text(**options: object) -> str:
    text = manifest_text(**options)  # type: ignore[arg-type]
    return text.replace('title = "', 'title = "TRIAL: ')


def trial(**options: object) -> Manifest:
    return read_manifest(trial_text(first=FIRST, period=DAY, count=30, grace=DAY, **options))


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_nothing_is_read_and_nothing_is_charged(
    joined: Joined, clock: FakeClock, reporting: str
) -> None:
    """Whatever the owner allows to be revealed; and the value, once made up, stays."""
    asked, answers = trial(reporting=reporting, each=30), list[str]()
    agent = joined(asked, policy=STRICT)

    def read(name: str) -> object:
        answers.append(name)
        return "gas"

    for _ in range(5):
        assert agent.draw(only(agent), read).round >= 0  # type: ignore[union-attr]
        clock.pass_time(DAY)
    assert answers == []
    assert len(memos_of(agent)) == (0 if reporting == "once" else 1)
    spent = agent.store.spent(only(agent))
    assert (spent.reports, spent.exact, spent.charged, ledger_of(agent)) == (5, 0.0, 0.0, [])


def test_a_trial_is_no_way_around_the_ledger(joined: Joined, clock: FakeClock) -> None:
    """It leaves the budget of real campaigns as it was, and is itself no claim to any of it; a
    campaign that only looks like a trial is charged."""
    agent = joined(trial())
    draw_rounds(agent, 2)
    assert used(agent.store, "fuel", None, clock.wall()) == 0.0
    agent.store.forget(only(agent), int(clock.wall()))
    agree(agent, trial())
    assert used(agent.store, None, None, clock.wall()) == 0.0
    lookalike = trial_text(slug="heat-trial", first=FIRST, period=DAY).replace("TRIAL:", "TRIAL")
    agree(agent, read_manifest(lookalike))
    assert used(agent.store, "fuel", None, clock.wall()) == 2.0


def test_values_are_made_up_as_often_as_everybody_knows() -> None:
    entropy, k, n = seeded("made up"), 5, 5_000
    counts = Counter(made_up_value(k, entropy) for _ in range(n))
    for value, share in enumerate(made_up_frequencies(k)):
        error = math.sqrt(n * share * (1 - share))
        assert abs(counts[value] - n * share) / error < 4.5, counts
    assert made_up_frequencies(3) == pytest.approx([6 / 11, 3 / 11, 2 / 11], rel=1e-6)


# --- what the owner is told -----------------------------------------------------------------------


SENTENCE = "This is a trial: this device answers with a value that it makes up at random."


def test_the_owner_reads_it_before_and_after_agreeing(
    cli: Cli, join: Cli, asked: Path, state: Path
) -> None:
    asked.write_text(trial_text(), encoding="utf-8")
    done = join(answer="y\n")
    assert done.exit_code == 0, done.stderr
    before, after = done.stdout.split("Joined")
    assert SENTENCE in before
    assert SENTENCE in after
    assert "Not ready" not in done.stdout + done.stderr, "no source is needed"
    shown = cli("show", "--state-dir", state).stdout
    assert SENTENCE in shown
    assert "The total cost is epsilon 0: the answers are made up." in shown
    status = facts_of(cli("status", "--state-dir", state, "--json"))["campaigns"][0]
    assert (status["epsilon_charged"], status["epsilon_bound"]) == (0.0, 0.0)
    page = state.parent / "mine.html"
    cli("show", "--state-dir", state, "--html", page)
    assert SENTENCE in page.read_text(encoding="utf-8")


def test_a_budget_refuses_before_the_owner_is_asked(join: Cli, config: Path, state: Path) -> None:
    config.write_text("[policy]\nlifetime_budget = 1\n")
    done = join("--config", config, answer="y\n")
    assert done.exit_code == 3
    assert "needs 2 more of source 'fuel'" in done.stderr
    assert "Do you agree?" not in done.stdout + done.stderr
    assert rows(state)["campaign"] == []

"""Facts are shown again when they change, and only then."""

from __future__ import annotations

import json

import pytest

from collector.commands.reading import EVERY_SECONDS, watched


@pytest.mark.parametrize("as_json", [False, True])
def test_what_did_not_change_is_not_said_again(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, waited = iter([{"n": 1}, {"n": 1}, {"n": 2}, {"n": 2}, {"n": 1}]), list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 5:
            raise KeyboardInterrupt  # which is how Ctrl-C arrives

    watched(lambda: next(seen), as_json, lambda facts: f"n is {facts['n']}", wait)
    lines = capsys.readouterr().out.splitlines()
    assert waited == [EVERY_SECONDS] * 5
    if as_json:
        assert [json.loads(line)["n"] for line in lines] == [1, 2, 1]
    else:
        assert [line for line in lines if line.startswith("n is")] == ["n is 1", "n is 2", "n is 1"]
        assert sum(line.endswith("UTC; Ctrl-C ends") for line in lines) == 3

"""`scripts/benchmark.py`: one entry for all benchmarks, and what each prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import benchmark
from benchmark import Benchmarks
from benchmarks import document
from benchmarks.measurements import Measurement
from benchmarks.peer_environment import PeerFailed, Peers
from stage.processes import StageError
from tests.support import benchmark_fakes as fakes

GOOD = Measurement("size", 19.0, "bytes", 20)
BAD = Measurement("size", 21.0, "bytes", 20)


def run(*words: str, given: Benchmarks | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(benchmark.main, words, obj=given)
    return done.exit_code, done.stdout


def good(*_: object) -> list[Measurement]:
    return [GOOD]


def bad(*_: object) -> list[Measurement]:
    return [BAD]


def test_every_benchmark_has_a_command_and_a_place_on_the_page() -> None:
    assert set(benchmark.main.commands) == {
        "agent", "startup", "ingest", "live", "simulate", "peers", "accuracy", "soak", "workers",
        "brokers", "all",
    }  # fmt: skip
    assert set(document.ABOUT) == {*benchmark.main.commands, "readers"} - {"all"}


@pytest.mark.parametrize("command", sorted(benchmark.main.commands))
def test_help_has_examples(command: str) -> None:
    code, text = run(command, "--help")
    assert code == 0
    examples = text.partition("Examples:\n")[2].splitlines()
    named = [line for line in examples if line.startswith("    python scripts/benchmark.py ")]
    assert named, text
    assert all(line.split()[2] == command for line in named)


def test_json_says_what_where_and_under_which_load() -> None:
    code, text = run("ingest", "--json", given=Benchmarks(ingest=good))
    told: dict[str, Any] = json.loads(text)
    assert code == 0
    assert told.keys() == {"benchmark", "ok", "measurements", "machine", "load", "peers"}
    assert told["benchmark"] == "ingest"
    assert told["measurements"][0]["what"] == "size"
    assert told["machine"].keys() == {"processor", "memory", "system", "Python", "libraries"}
    assert "numpy" in told["machine"]["libraries"]
    assert "cores" in told["load"]


def test_a_broken_limit_is_the_exit_status(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    code, text = run("ingest", given=Benchmarks(ingest=bad, page=page))
    assert code == 1
    assert "BROKEN" in text
    assert not page.exists()  # nothing is written unless asked for


def test_write_says_how_to_measure_the_same_again(tmp_path: Path) -> None:
    given = Benchmarks(ingest=good, page=tmp_path / "benchmarks.md")
    words = ("ingest", "--runs", "2", "--large", "1000000", "--write", "--json")
    assert run(*words, given=given)[0] == 0
    text = given.page.read_text(encoding="utf-8")
    assert "    python scripts/benchmark.py ingest --runs 2\n" in text
    assert "| size | 19 bytes | <= 20 | ok |" in text


def test_the_page_names_the_other_version_but_not_where_it_lies(tmp_path: Path) -> None:
    other = tmp_path / "v0"
    (other / "collector" / "brokers").mkdir(parents=True)
    (other / "collector" / "brokers" / "nats.py").touch()
    given = Benchmarks(live=good, page=tmp_path / "benchmarks.md")
    assert run("live", "--against", str(other), "--write", given=given)[0] == 0
    text = given.page.read_text(encoding="utf-8")
    assert "    python scripts/benchmark.py live --against v0\n" in text


def test_the_other_version_must_be_a_checkout(tmp_path: Path) -> None:
    done = CliRunner().invoke(benchmark.main, ["live", "--against", str(tmp_path)])
    assert done.exit_code == 2
    assert f"{tmp_path} is no checkout of allomfree with an embedded broker" in done.stderr


def test_a_run_that_fails_is_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    def fails(*_: object) -> list[Measurement]:
        raise StageError("the broker did not start")

    given = Benchmarks(live=fails, page=tmp_path / "benchmarks.md")
    done = CliRunner().invoke(benchmark.main, ["live", "--write"], obj=given)
    assert done.exit_code == 1
    assert done.stderr == "Error: the broker did not start; nothing was written\n"
    assert not given.page.exists()


def test_all_goes_on_after_a_broken_limit(tmp_path: Path) -> None:
    given = Benchmarks(
        agent=bad,
        startup=good,
        ingest=bad,
        live=bad,
        readers=bad,
        simulate=good,
        peers=good,
        accuracy=good,
        install=fakes.installed,
        page=tmp_path / "benchmarks.md",
    )
    code, text = run("all", "--json", "--write", given=given)
    assert code == 1
    told = [json.loads(line) for line in text.splitlines()]
    names = ["agent", "startup", "ingest", "live", "readers", "simulate", "peers", "accuracy"]
    assert [t["benchmark"] for t in told] == names
    assert [t["ok"] for t in told] == [False, True, False, False, False, True, True, True]
    written = given.page.read_text(encoding="utf-8")
    assert "    python scripts/benchmark.py ingest --reports 300000 --readers 10\n" in written
    assert "Compared with multi-freq-ldpy 0.0.1." in written


def test_peers_that_cannot_be_installed_are_one_sentence() -> None:
    @contextmanager
    def fail(_python: Path | None) -> Iterator[Peers]:
        raise PeerFailed("the peers could not be installed")
        yield

    done = CliRunner().invoke(benchmark.main, ["peers"], obj=Benchmarks(install=fail))
    assert done.exit_code == 1
    assert done.stderr == "Error: the peers could not be installed\n"

"""The images run as nobody special, hold no secrets, and start commands that exist."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from collector.settings import SETTINGS as COLLECTOR_SETTINGS
from edge_client.settings import SETTINGS as EDGE_SETTINGS
from tests.support.deploy_files import DEPLOY, DOCKERFILES, Dockerfile, can_be_typed, project
from tests.support.places import ROOT

SETTINGS = {"edge": EDGE_SETTINGS, "collector": COLLECTOR_SETTINGS}
STATE = {"edge": "ALLOMFREE_STATE_DIR", "collector": "ALLOMFREE_DATA_DIR"}

each = pytest.mark.parametrize("name", DOCKERFILES)


def sources(image: Dockerfile) -> list[str]:
    """What is copied from the repository."""
    copies = [text.split() for text in image.all("COPY") if "--from" not in text]
    return [source for words in copies for source in words[:-1]]


@each
def test_it_ends_as_a_user_without_privileges(name: str) -> None:
    image = DOCKERFILES[name]
    assert image.user > 0
    assert f"--uid {image.user} " in "".join(image.all("RUN"))
    after = [what for what, _ in image.instructions[image.instructions.index(("USER", "10001")) :]]
    assert "RUN" not in after


@each
def test_what_it_runs_can_be_typed(name: str) -> None:
    image = DOCKERFILES[name]
    can_be_typed([*image.words("ENTRYPOINT"), *image.words("CMD")])
    can_be_typed(image.words("HEALTHCHECK"))


@each
def test_its_state_is_a_private_volume(name: str) -> None:
    image = DOCKERFILES[name]
    (volume,) = image.all("VOLUME")
    assert image.environment[STATE[name]] == volume
    assert re.search(
        rf"install -d -m 0700 -o allomfree -g allomfree\s+{volume}", image.all("RUN")[-1]
    )


@each
def test_its_settings_are_settings_and_no_secrets(name: str) -> None:
    image = DOCKERFILES[name]
    ours = {key for key in image.environment if key.startswith("ALLOMFREE_")}
    assert ours <= {setting.variable for setting in SETTINGS[name]}
    everything = " ".join(rest for _, rest in image.instructions).lower()
    assert not re.search(r"password|secret|token|credential|\.key|\.pem", everything)
    assert not image.all("ADD")
    assert not image.all("ARG")


@each
def test_it_copies_what_is_there_and_what_the_package_is_made_of(name: str) -> None:
    copied = sources(DOCKERFILES[name])
    assert all((ROOT / source).exists() for source in copied)
    setuptools = project()["tool"]["setuptools"]
    moved = setuptools["package-dir"]
    named = {
        package for package in setuptools["packages"] if package.partition(".")[0] not in moved
    }
    needed = {package.partition(".")[0] for package in named} | {*moved.values(), "pyproject.toml"}
    needed |= {project()["project"]["readme"], *project()["project"]["license-files"]}
    assert needed <= set(copied)


@each
def test_only_what_is_copied_is_sent_to_the_builder(name: str) -> None:
    """The last rule that fits decides, as Docker has it."""
    rules = (DEPLOY / f"Dockerfile.{name}.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [rule for rule in rules if rule and rule[0] != "#"]
    assert rules[0] == "*"
    let_through = {rule[1:] for rule in rules if rule.startswith("!")}
    assert let_through == set(sources(DOCKERFILES[name]))
    assert not any(fnmatch(secret, rule) for secret in (".git", ".venv") for rule in let_through)


@each
def test_its_python_is_one_that_the_project_supports(name: str) -> None:
    bases = [text.split()[0] for text in DOCKERFILES[name].all("FROM")]
    assert len(bases) == 2
    assert len(set(bases)) == 1, "wheels fit the Python they were made for"
    found = re.fullmatch(r"python:3\.(\d+)-slim(@sha256:[0-9a-f]{64})?", bases[0])
    least = re.fullmatch(r">=3\.(\d+)", project()["project"]["requires-python"])
    assert found
    assert least
    assert int(found[1]) >= int(least[1])


@each
def test_it_installs_the_pinned_files_from_its_own_wheels(name: str) -> None:
    """S1: what is fetched is checked by its hash, and only the project's own wheel is built."""
    build, install = DOCKERFILES[name].all("RUN")
    extras = {"edge": "", "collector": "[collector,broker,postgres]"}[name]
    pinned = {"edge": "edge", "collector": "postgres"}[name]  # which holds the collector's, too
    fetch, builder, own = build.split("&&")
    assert f"--requirement scripts/requirements/{pinned}.txt" in fetch
    assert "--requirement scripts/requirements/build.txt" in builder
    for fetching in (fetch, builder):
        assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(fetching.split())
    assert {"--no-deps", "--no-index", "--no-build-isolation"} <= set(own.split())
    assert own.split()[-1] == "."
    assert "--no-index" in install
    assert f"allomfree{extras}" in install.replace('"', "").split()
    wanted = re.findall(r"\w+", extras)
    assert set(wanted) <= set(project()["project"]["optional-dependencies"])


@pytest.mark.parametrize(
    "file", [f for f in sorted(DEPLOY.iterdir()) if f.is_file()], ids=lambda file: file.name
)
def test_nothing_here_is_private_or_tied_to_a_registry(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "PRIVATE KEY" not in text
    assert not re.search(r"(?m)^\s*(FROM|image:)\s+\S+\.\S+/", text)

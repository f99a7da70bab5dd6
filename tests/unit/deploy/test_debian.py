"""The Debian packages: `dpkg` installs them into a scratch root, and the programs run there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from supply_chain import libraries, read_pins
from testbed.processes import free_port
from tests.support.campaigns import manifest_text
from tests.support.documents import can_be_typed, project, unit
from tests.support.harness import ROOT, need

pytestmark = pytest.mark.slow
PYTHON = "3.11"  # of Debian 12
CHROOTLESS = ("--force-script-chrootless", "--force-depends", "--force-not-root")


class Root:
    """A directory that dpkg takes for the machine, with one of our packages in it."""

    def __init__(self, place: Path, file: Path) -> None:
        self.place, self.file = place, file
        (place / "var/lib/dpkg/info").mkdir(parents=True)
        (place / "var/lib/dpkg/updates").mkdir()
        (place / "var/lib/dpkg/status").touch()
        self.name = file.name.partition("_")[0]
        self.dpkg("--install", file)

    @property
    def home(self) -> Path:
        return self.place / "usr/lib" / self.name

    @property
    def command(self) -> list[str]:
        """The program, with the interpreter that its first line names."""
        return [str(self.home / "bin/python"), "-I", str(self.home / "bin" / self.name)]

    def dpkg(self, *words: str | Path) -> None:
        done = subprocess.run(
            ["dpkg", f"--root={self.place}", *CHROOTLESS, *map(str, words)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *map(str, words)], capture_output=True, text=True, check=False
        )

    def files(self) -> list[Path]:
        """What is in the package; symbolic links too."""
        listed = (self.place / f"var/lib/dpkg/info/{self.name}.list").read_text().split("\n")
        return [self.place / name.lstrip("/") for name in listed if name and name != "/."]


def packed(directory: Path, program: str, *options: str) -> Path:
    need("dpkg", "dpkg-deb")
    found = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True)  # noqa: PLW1510
    if not found.stdout.startswith(f"Python {PYTHON}."):
        pytest.skip(f"the packages are for Debian 12, whose Python is {PYTHON}")
    words = ["--only", program, "--output", str(directory), "--compression", "none"]
    done = subprocess.run(
        [str(ROOT / "scripts/build-deb"), *words, "--python", sys.executable, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split("  ")[0])


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Root:
    place = tmp_path_factory.mktemp("edge")
    return Root(place / "root", packed(place, "edge"))


def test_the_agent_runs_from_its_package_and_needs_nothing_compiled(
    edge: Root, tmp_path: Path
) -> None:
    assert edge.file.name == f"allomfree-edge_{project()['project']['version']}_all.deb"
    assert not [file for file in edge.files() if file.suffix == ".so"]
    assert {p.name for p in edge.home.glob("lib/*/site-packages/*") if "." not in p.name} == {
        "click", "edge_client", "msgpack", "paho", "protocol_spec",
    }  # fmt: skip
    version = project()["project"]["version"]
    assert edge.run("--version").stdout == f"allomfree-edge, version {version}\n"
    manifest = tmp_path / "heat.toml"
    manifest.write_text(manifest_text())
    words = ("--manifest", manifest, "--broker", "mqtt://localhost", "--preview")
    shown = edge.run("join", *words, "--config", os.devnull, "--state-dir", tmp_path / "state")
    assert shown.returncode == 0, shown.stderr
    assert "What heats your home?" in shown.stdout


def test_files_belong_to_root_and_the_unit_starts_what_is_installed(edge: Root) -> None:
    listing = subprocess.run(
        ["dpkg-deb", "--contents", str(edge.file)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {line.split()[1] for line in listing} == {"root/root"}
    writable = [line for line in listing if line[8] == "w" and line[0] != "l"]
    assert not writable, "by others"
    assert (edge.home / f"lib/python{PYTHON}/site-packages/edge_client/__pycache__").is_dir()
    (start,) = unit(edge.place / "lib/systemd/system/allomfree-edge.service")["ExecStart"]
    can_be_typed(start.split())
    program = edge.place / start.split()[0].lstrip("/")
    assert program.resolve() == (edge.home / "bin/allomfree-edge").resolve()
    assert os.access(program, os.X_OK)
    assert program.read_text().startswith("#!/usr/lib/allomfree-edge/bin/python -I\n")
    assert (edge.home / "bin/python").readlink() == Path("/usr/bin/python3")


def test_configuration_stays_when_it_is_removed_and_nothing_when_it_is_purged(
    edge: Root, tmp_path: Path
) -> None:
    root = Root(tmp_path / "root", edge.file)
    config = root.place / "etc/allomfree/edge.toml"
    config.write_text("# changed by the owner\n")
    root.dpkg("--remove", root.name)
    assert config.read_text() == "# changed by the owner\n"
    assert not root.home.exists()
    root.dpkg("--purge", root.name)
    assert not config.parent.exists()


@pytest.mark.parametrize("known", [False, True], ids=["new-user", "known-user"])
@pytest.mark.parametrize("program", ["edge", "collector"])
def test_installing_makes_the_user_and_starts_nothing(
    program: str, known: bool, tmp_path: Path
) -> None:
    """With commands that print what they were called with; `getent` knows the user or not."""
    for name in ("useradd", "install", "chgrp", "chmod", "systemctl"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
    (tmp_path / "getent").write_text(f"#!/bin/sh\nexit {0 if known else 2}\n")
    for file in tmp_path.iterdir():
        file.chmod(0o755)
    name = f"allomfree-{program}"
    script = (ROOT / "deploy/debian/postinst").read_text(encoding="utf-8")
    done = subprocess.run(
        ["/bin/sh", "-s", "configure"],
        input=script.replace("@NAME@", name).replace("@FILE@", f"{program}.toml"),
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert ("useradd --system" in done) == (not known)
    assert f"install -d -m 0700 -o {name} -g {name} /var/lib/{name}" in done
    assert f"chmod 0640 /etc/allomfree/{program}.toml" in done
    assert not re.search(r"systemctl (enable|start|restart)", done)


def test_the_collector_runs_from_its_package_with_broker_and_page(tmp_path: Path) -> None:
    root = Root(tmp_path / "root", packed(tmp_path, "collector", "--no-compile"))
    data, port = tmp_path / "data", free_port()
    (tmp_path / "campaign.toml").write_text(manifest_text())
    settings = ("--config", os.devnull, "--data-dir", data)
    assert "Opened" in root.run("open", tmp_path / "campaign.toml", *settings).stdout
    words = ("run", "--quiet", "--listen", f"127.0.0.1:{port}", *settings)
    running = subprocess.Popen([*root.command, *map(str, words)], stderr=subprocess.PIPE)
    try:
        limit = time.monotonic() + 120
        while (told := root.run("health", *settings)).returncode:
            assert running.poll() is None, running.communicate()[1].decode()
            assert time.monotonic() < limit, told.stdout
        assert told.stdout.startswith("ok    service: connected and counting\n")
    finally:
        running.terminate()
        running.communicate(timeout=60)
    assert running.returncode == 0
    deployed = {p.name for p in (root.place / "usr/share/doc/allomfree-collector").iterdir()}
    assert {"prometheus-alerts.yaml", "sbom.cdx.json", "copyright"} <= deployed


def test_a_library_that_was_changed_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed here is compared with what its wheel said of every file."""
    site = tmp_path / "site"
    version = read_pins("edge")["msgpack"][0]
    info = site / f"msgpack-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: msgpack\nVersion: {version}\n")
    (info / "RECORD").write_text(f"msgpack/__init__.py,sha256={'A' * 43},3\n")
    (site / "msgpack").mkdir()
    (site / "msgpack/__init__.py").write_text("bad")
    monkeypatch.syspath_prepend(site)
    done = CliRunner().invoke(libraries, ["edge", str(tmp_path / "out")])
    assert (done.exit_code, "is not as its wheel had it" in done.output) == (1, True)

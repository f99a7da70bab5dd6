"""`allomfree-sim`: the simulator and the paper's results, installed by `allomfree[sim]`.

In the wheel `simulation`, `paper` and `testbed` are inside this package; in a checkout they are its
neighbours. They import each other by these short names, so the command puts the directory that
holds them first on the path of its own process. Any other program sees them only after it has
called `add_to_path`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from protocol_spec.programs.cli import install_command

__all__ = ["add_to_path", "main"]

_HERE = Path(__file__).resolve().parent
PACKAGES = _HERE if (_HERE / "simulation").is_dir() else _HERE.parent


def add_to_path() -> None:
    """Make `simulation`, `paper` and `testbed` importable in this process."""
    if str(PACKAGES) not in sys.path:
        sys.path.insert(0, str(PACKAGES))


def main() -> None:
    add_to_path()
    try:
        from paper.cli import main as paper  # noqa: PLC0415
        from simulation.cli import main as command  # noqa: PLC0415 - found by the line above

        command.add_command(paper)
        command(prog_name="allomfree-sim")
    except ModuleNotFoundError as missing:
        sys.exit(
            f"error: allomfree-sim needs {missing.name}, which is not installed; nothing was "
            f"written. Run: {install_command('sim')}"
        )

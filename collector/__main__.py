"""Where `allomfree-collector` starts, also as `python -m collector`.

Where only the agent is installed, it says what to install.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say in one line why it cannot run."""
    try:
        from collector import commands  # noqa: PLC0415 - it needs what may not be installed
    except ModuleNotFoundError as missing:
        sys.stderr.write(
            f"error: the collector needs {missing.name}, which is not installed; nothing was done. "
            "Run: pip install 'allomfree[collector]'\n"
        )
        sys.exit(2)
    commands.main()


if __name__ == "__main__":
    main()

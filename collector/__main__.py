"""Where `allomfree-collector` starts, also as `python -m collector`."""

from __future__ import annotations

from collector.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    main()

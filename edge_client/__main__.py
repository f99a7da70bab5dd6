"""Where `allomfree-edge` starts, also as `python -m edge_client`."""

from __future__ import annotations

from edge_client.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()

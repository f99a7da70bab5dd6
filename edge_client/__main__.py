"""`allomfree-edge`, also as `python -m edge_client`."""

from __future__ import annotations

from edge_client.commands import program

main = program()

if __name__ == "__main__":
    main()

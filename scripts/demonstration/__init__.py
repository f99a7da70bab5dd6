"""What ./scripts/demo runs: `steps` are its steps for one collector or a cluster, and what must
hold at the end."""

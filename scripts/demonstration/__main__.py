"""`python -m demonstration`: what ./scripts/demo runs."""

from demonstration.command import main

main(prog_name="./scripts/demo")

"""`python -m demonstration`: what ./scripts/demo runs."""

from demonstration.story import main

main()

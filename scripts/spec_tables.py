#!/usr/bin/env python
"""Write the generated parts of protocol_spec/README.md and asyncapi.yaml from the code.

./scripts/spec_tables.py            write them
./scripts/spec_tables.py --check    compare, and exit 1 with the difference
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = Path(__file__).parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]

from specification import asyncapi, readme  # noqa: E402 - found by the lines above
from specification.blocks import SpecificationError, renewed  # noqa: E402

DOCUMENTS = SCRIPTS.parent / "protocol_spec"
COMMAND = "./scripts/spec_tables.py"


def main(arguments: Sequence[str] | None = None, directory: Path = DOCUMENTS) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(arguments).check
    try:
        made = generated(directory)
    except SpecificationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return differences(made) if check else write(made)


def generated(directory: Path) -> dict[Path, str]:
    """Each document as it should be. The README's tables of results follow the schemas."""
    schemas, text = directory / "asyncapi.yaml", directory / "README.md"
    schemas_made = renewed(schemas.read_text(encoding="utf-8"), asyncapi.BLOCKS)
    before = text.read_text(encoding="utf-8")
    return {schemas: schemas_made, text: renewed(before, readme.blocks(before, schemas_made))}


def differences(made: dict[Path, str]) -> int:
    found = [
        line
        for path, text in made.items()
        for line in difflib.unified_diff(
            path.read_text(encoding="utf-8").splitlines(),
            text.splitlines(),
            f"{path.name} as it is",
            f"{path.name} as the code says",
            lineterm="",
        )
    ]
    if found:
        print(*found, sep="\n")
        print(
            f"error: the specification does not say what the code does; run {COMMAND}",
            file=sys.stderr,
        )
    return 1 if found else 0


def write(made: dict[Path, str]) -> int:
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

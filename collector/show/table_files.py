"""Tables as files: the ending of the name chooses the format, unless it was named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from collector.records import Campaign
from collector.show.frames import parquet
from collector.show.tables import Format, rows, write
from protocol_spec import Result
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.output import quoted

FileFormat = Literal["csv", "json", "ndjson", "parquet"]
FORMATS: Final[tuple[FileFormat, ...]] = ("csv", "json", "ndjson", "parquet")
_ENDINGS: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
}
_FIGURES: Final = (".svg", ".png", ".html")


def chosen_format(named: FileFormat | None, output: Path | None, figure: Path | None) -> FileFormat:
    """The format that was named, else that of the file's ending, else CSV if it has none."""
    ending = "" if output is None else output.suffix.lower()
    if named is None and ending in _FIGURES:
        raise SettingsError(
            f"--output {output}: rows are no picture; nothing was written. Draw them with "
            f"--figure {output}, or name the rows' --format"
        )
    if named is None and ending and ending not in _ENDINGS:
        *most, last = _ENDINGS
        raise SettingsError(
            f"--output {output}: {quoted(ending)} is no format of rows; nothing was written. End "
            f"its name in {', '.join(most)} or {last}, or name the --format"
        )
    form = named or _ENDINGS.get(ending, "csv")
    if form == "parquet" and output is None and figure is None:
        raise SettingsError(
            "--format parquet: it is not for a terminal; nothing was written. Name a file, as in "
            "--output heat.parquet"
        )
    return form


def content(campaign: Campaign, results: Iterable[Result], form: FileFormat) -> bytes:
    """A file's content."""
    if form == "parquet":
        return parquet(rows(campaign, results))
    text: Format = form
    return write(campaign, results, text).encode()

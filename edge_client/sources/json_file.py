"""A field of a JSON file that some other program keeps up to date."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edge_client.errors import SourceFailure
from protocol_spec.programs.output import quoted


@dataclass(frozen=True, slots=True)
class JsonFileSource:
    """`file = "/run/heater.json"`, `field = "status.fuel"` (dots go into nested objects)."""

    file: str
    field: str

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.file, self.field)):
            raise ValueError('file and field must be text, as in field = "status.fuel"')

    def read(self) -> object:
        """The field's text or number."""
        try:
            found = json.loads(Path(self.file).read_text(encoding="utf-8"))
            for name in self.field.split("."):
                found = found[int(name) if isinstance(found, list) else name]
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        except UnicodeDecodeError:
            what = "is not UTF-8 text"
        except (json.JSONDecodeError, RecursionError):
            what = "is not JSON"
        except (KeyError, IndexError, TypeError, ValueError):
            what = f"has no field {quoted(self.field)}"
        else:
            if isinstance(found, str | int | float | bool):
                return found
            what = f"holds neither text nor a number at {quoted(self.field)}"
        raise SourceFailure(f"{self.file} {what}; nothing was drawn or sent") from None

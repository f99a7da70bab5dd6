"""Python's search for garbage in cycles, at the pace of batches.

A batch makes tens of thousands of objects, and all of them are gone with it without any search.
At the usual pace Python would look through them every 700 objects, and now and then through all
that the program holds: a fifth of the processor time of a report.
"""

from __future__ import annotations

import gc
from typing import Final

OBJECTS: Final = 100_000  # more than those of a batch; a few megabytes, if they were garbage


def search_rarely() -> None:
    """For the whole process: a search when so many more objects were made than are gone."""
    gc.set_threshold(OBJECTS)

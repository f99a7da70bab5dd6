"""Backups of a collector: made while it runs, checked after, and restored into an empty directory.

contents.py   the list of a backup, its files, and their check
files.py      private copies, and directories that are empty again after a failure
making.py     make one
restoring.py  put one into place
"""

from __future__ import annotations

from collector.backups.contents import Contents, checked
from collector.backups.files import digest_of
from collector.backups.making import make
from collector.backups.restoring import restore

__all__ = ["Contents", "checked", "digest_of", "make", "restore"]

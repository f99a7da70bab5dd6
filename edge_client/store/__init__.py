"""The device's memory: the one place with SQL.

Claims, each kept by one transaction on a write-ahead log with `synchronous=FULL`:
  I1  a report exists only together with the memo it was drawn from
  I2  one memo per (campaign, value), and its charge is booked with it; an answer without a memo is
      booked with itself, and given only in a round that was drawn for it
  I3  one payload per (campaign, round), and rounds only go forward
  I4  `Store.record` returns only when the report is on the disk: whoever sends it sends it later
  I5  a row leaves the outbox only by `Outbox.finish` or because the owner left

Losing this memory would mean drawing a second memo for the same value, so a missing, damaged,
replaced or rolled-back database is refused, never recreated.

  store.py       the open state directory; the one transaction that records a draw
  campaigns.py   consent, pseudonym, attribute, drawn rounds, progress; the owner's decisions
  memos.py       the permanent answers
  outbox.py      reports, from their draw until they were counted or missed
  ledger.py      every charge, for ever
  forgetting.py  wiping a campaign, and searching the files for what is left of it
  recovery.py    going on after a loss, charged for everything that may have been said
  opening.py     which databases are opened and which are refused
  database.py    the connection, its transactions, and the high-water mark in step with them
  highwater.py   the mark beside the database: how far it had come
  surviving.py   what the mark carries over a loss, read from the tables
  schema.py      the tables, as append-only steps
  directory.py   the state directory: private, and used by one agent at a time
"""

from edge_client.store.store import Store

__all__ = ["Store"]

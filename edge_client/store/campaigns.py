"""The campaigns joined: consent, pseudonym, attribute and progress, and the owner's decisions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from functools import lru_cache

from edge_client.errors import CampaignProblem
from edge_client.records import Draw, Membership, Status
from edge_client.states import FORGOTTEN
from edge_client.store.database import Database
from edge_client.store.highwater import Participation
from edge_client.store.outbox import Outbox
from edge_client.store.surviving import kept_participation
from protocol_spec import Manifest


@lru_cache(maxsize=128)  # more than a device can join
def _manifest(content: bytes) -> Manifest:
    """Read once: what was joined never changes."""
    return Manifest.from_bytes(content)


class Campaigns:
    """The tables `campaign` and `decision`."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        self._database = database
        self._outbox = outbox

    def all(self) -> list[Membership]:
        """Every campaign this device knows, in the order of joining."""
        rows = self._database.execute(
            """SELECT campaign.*, operator, known_broker FROM campaign
               LEFT JOIN trust ON trust.campaign = name ORDER BY joined, name"""
        )
        return [self._membership(row) for row in rows.fetchall()]

    def join(
        self,
        manifest: Manifest,
        *,
        broker: str,
        namespace: str,
        participation: Participation,
        at: int,
        rounds: Iterable[int] | None = None,
        operator: bytes = b"",
        known_broker: bool = True,
    ) -> None:
        """Remember consent, pseudonym, attribute and the rounds drawn; or take part again."""
        shown, answers = participation[:3], participation.answers
        with self._database.transaction():
            joined = self._database.execute(
                """INSERT INTO campaign (name, manifest, broker, namespace, device, attribute,
                       last_round, status, joined) VALUES (?, ?, ?, ?, ?, ?, ?, 'joined', ?)
                   ON CONFLICT (name) DO UPDATE SET status = 'joined',
                       broker = excluded.broker, namespace = excluded.namespace
                   WHERE manifest = excluded.manifest""",
                (manifest.campaign, manifest.to_bytes(), broker, namespace, *shown, at),
            )
            if joined.rowcount != 1:
                raise CampaignProblem(
                    f"{manifest.campaign} is the name of another campaign that was joined at this "
                    "moment; nothing was changed. See allomfree-edge show"
                )
            self._trust(manifest.campaign, operator, known_broker)
            if rounds is not None:
                self._add_rounds(manifest.campaign, rounds, answers)
            self._decide(manifest.campaign, "joined", at)

    def _trust(self, campaign: str, operator: bytes, known_broker: bool) -> None:
        """A signature that was verified once stays so: it is of the same manifest."""
        self._database.execute(
            """INSERT INTO trust VALUES (?, ?, ?) ON CONFLICT (campaign) DO UPDATE SET
               known_broker = excluded.known_broker,
               operator = iif(length(excluded.operator), excluded.operator, operator)""",
            (campaign, known_broker, operator),
        )

    def known_brokers(self) -> list[str]:
        """The brokers that credentials were for when campaigns were joined there."""
        rows = self._database.execute(
            """SELECT DISTINCT broker FROM campaign LEFT JOIN trust ON campaign = name
               WHERE known_broker IS NOT 0 ORDER BY broker"""
        )
        return [broker for (broker,) in rows.fetchall()]

    def _add_rounds(self, campaign: str, rounds: Iterable[int], answers: int) -> None:
        """For life: another process may have joined meanwhile, and then its draw stands."""
        first = self._database.execute(
            "INSERT OR IGNORE INTO answered VALUES (?, ?)", (campaign, answers)
        )
        if first.rowcount == 1:
            self._database.connection.executemany(
                "INSERT INTO drawn_round (campaign, round) VALUES (?, ?)",
                [(campaign, number) for number in rounds],
            )

    def set_status(self, campaign: str, status: Status, at: int) -> None:
        """Pause, resume or leave. Leaving withdraws what has not been counted yet."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE campaign SET status = ? WHERE name = ?", (status, campaign)
            )
            self._decide(campaign, status, at)
            if status == "left":
                self._outbox.withdraw(campaign)

    def require_joined(self, campaign: str) -> None:
        """The owner may have paused or left while the value was being read."""
        rows = self._database.execute("SELECT status FROM campaign WHERE name = ?", (campaign,))
        if rows.fetchone()["status"] != "joined":
            raise CampaignProblem(f"{campaign} was paused or left; nothing was drawn or sent")

    def advance(self, campaign: str, draw: Draw) -> None:
        """Move on to the round that is being drawn: never back, and never twice the same."""
        moved = self._database.execute(
            """UPDATE campaign SET last_round = ?, last_value = ?, boot = ?, round_opened = ?
               WHERE name = ? AND last_round < ?""",
            (draw.round, draw.value, draw.boot, draw.round_opened, campaign, draw.round),
        )
        if moved.rowcount != 1:
            raise AssertionError("a round was about to be drawn twice")

    def count_answer(self, membership: Membership, number: int) -> None:
        """One more answer without a memo, in a round drawn for it, inside a transaction."""
        if number not in self._drawn_rounds(membership.name):
            raise AssertionError("a round that was not drawn was about to be answered")
        self._database.execute(
            "UPDATE answered SET answers = answers + 1 WHERE campaign = ?", (membership.name,)
        )

    def before_loss(self, campaign: str) -> Participation | None:
        """What a campaign had been shown before the memory was lost."""
        return kept_participation(self._database.connection, campaign)

    def decisions(self, campaign: str) -> list[tuple[int, str]]:
        """What the owner or the policy decided about a campaign, and when."""
        rows = self._database.execute(
            "SELECT at, what FROM decision WHERE campaign = ? ORDER BY line", (campaign,)
        )
        return [(at, what) for at, what in rows]

    def decide(self, campaign: str, what: str, at: int) -> None:
        """Remember a decision that changes nothing else."""
        with self._database.transaction():
            self._decide(campaign, what, at)

    def erase(self, campaign: str, at: int) -> None:
        """Remove a campaign and all that belongs to it, inside a transaction."""
        self._database.execute("DELETE FROM campaign WHERE name = ?", (campaign,))
        self._database.execute("DELETE FROM decision WHERE campaign = ?", (campaign,))
        self._decide(campaign, FORGOTTEN, at)

    def _decide(self, campaign: str, what: str, at: int) -> None:
        self._database.execute(
            "INSERT INTO decision (at, campaign, what) VALUES (?, ?, ?)", (at, campaign, what)
        )

    def _membership(self, row: sqlite3.Row) -> Membership:
        fields = dict(row)
        fields["manifest"] = _manifest(fields["manifest"])
        fields["attribute_index"] = fields.pop("attribute")
        if fields["operator"] is None:  # joined by an earlier version, which left no trust
            del fields["operator"], fields["known_broker"]
        if fields["manifest"].reporting == "once":
            fields["drawn_rounds"] = self._drawn_rounds(row["name"])
            fields["answers"] = self._answers(row["name"])
        return Membership(**fields)

    def _drawn_rounds(self, campaign: str) -> tuple[int, ...]:
        rows = self._database.execute(
            "SELECT round FROM drawn_round WHERE campaign = ? ORDER BY round", (campaign,)
        )
        return tuple(number for (number,) in rows)

    def _answers(self, campaign: str) -> int:
        rows = self._database.execute(
            "SELECT answers FROM answered WHERE campaign = ?", (campaign,)
        )
        return int(rows.fetchone()[0])

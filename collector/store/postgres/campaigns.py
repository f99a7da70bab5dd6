"""Campaigns, revoked devices, and what was published: small rows that people change."""

from __future__ import annotations

from collector.records import Campaign, UnpublishedResult
from collector.store.postgres.sealing import SealedRounds
from collector.store.shared import require_same
from protocol_spec import Manifest


class Campaigns(SealedRounds):
    """Opened and closed here; every worker notices by the number in `version`."""

    def open_campaign(self, manifest: Manifest, at: int, signature: bytes = b"") -> Campaign:
        """Add a campaign, with its operator's signature; opening it again changes nothing else."""
        with self._db.transaction():
            self._note_change()
            self._db.execute(
                """INSERT INTO campaign (id, name, manifest, opened)
                   SELECT coalesce(max(id), 0) + 1, %s, %s, %s FROM campaign
                   ON CONFLICT (name) DO NOTHING""",
                (manifest.campaign, manifest.to_bytes(), at),
            )
            ((key, stored),) = self._db.rows(
                "SELECT id, manifest FROM campaign WHERE name = %s", (manifest.campaign,)
            )
            require_same(bytes(stored), manifest)
            if signature:
                self._db.execute(
                    """INSERT INTO signature VALUES (%s, %s)
                       ON CONFLICT (campaign) DO UPDATE SET signature = excluded.signature""",
                    (key, signature),
                )
        self._own_changes += 1
        return self.campaign(manifest.campaign)

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        """Take no more reports."""
        with self._db.transaction():
            self._note_change()
            self._db.execute(
                "UPDATE campaign SET closed = %s WHERE id = %s AND closed IS NULL",
                (at, campaign.id),
            )
        self._own_changes += 1

    def revoke(self, device: str, at: int) -> None:
        """Take no more reports from a device."""
        with self._db.transaction():
            self._note_change()
            self._db.execute(
                "INSERT INTO revoked VALUES (%s, %s) ON CONFLICT DO NOTHING", (device, at)
            )
        self._own_changes += 1

    def reinstate(self, device: str) -> None:
        """Take a device's reports again."""
        with self._db.transaction():
            self._note_change()
            self._db.execute("DELETE FROM revoked WHERE device = %s", (device,))
        self._own_changes += 1

    def _note_change(self) -> None:
        """Its row is held until the end, so that campaigns are opened one after the other."""
        self._db.execute("UPDATE version SET n = n + 1")

    # --- at the broker -----------------------------------------------------------------------

    def mark_published(self, result: UnpublishedResult) -> None:
        """The broker has taken this result; a newer pooled one stays to be published."""
        with self._db.transaction():
            self.check_leading()
            self._db.execute(
                """DELETE FROM unpublished u USING result r
                   WHERE u.campaign = %s AND u.attribute = %s AND u.round = %s
                   AND r.campaign = u.campaign AND r.attribute = u.attribute
                   AND r.round = u.round AND r.message = %s""",
                (result.campaign, result.attribute, result.round, result.message),
            )

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""
        with self._db.transaction(whole_tables=True):
            self.check_leading()
            self._db.execute(
                """INSERT INTO unpublished SELECT campaign, round, attribute FROM result
                   ON CONFLICT DO NOTHING"""
            )

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._db.transaction():
            self.check_leading()
            self._db.execute(
                "UPDATE round SET receipts_cleared = true WHERE campaign = %s AND number = %s",
                (campaign, number),
            )

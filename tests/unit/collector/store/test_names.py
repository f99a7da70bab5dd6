"""Two manifests with one name: the first keeps it, in every engine (P3)."""

from __future__ import annotations

import pytest

from collector.errors import CollectorError
from collector.store import Store
from tests.support.collector import FIRST
from tests.support.databases import snapshot
from tests.support.hostile import A, B


def test_the_name_of_another_campaign_is_refused(store: Store) -> None:
    store.open_campaign(A, FIRST)
    before = snapshot(store)
    with pytest.raises(CollectorError, match="Nothing was opened or changed") as told:
        store.open_campaign(B, FIRST)
    assert A.digest.hex() in str(told.value)
    assert B.digest.hex() in str(told.value)
    assert snapshot(store) == before
    assert store.open_campaign(A, FIRST).manifest == A


def test_a_signature_is_kept(store: Store) -> None:
    opened = store.open_campaign(A, FIRST)
    assert store.signature(opened.id) == b""
    assert store.open_campaign(A, FIRST, b"s" * 64) == opened
    assert store.open_campaign(A, FIRST) == opened
    assert store.signature(opened.id) == b"s" * 64
    assert store.signature(opened.id + 1) == b""

"""Looking at a database must not change it."""

from pathlib import Path

from onetray.store import open_store


def test_a_store_that_is_only_looked_at_is_not_migrated(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/new.db", migrate=False)
    assert store.version() == 0
    store.close()

"""Looking at a database must not change it."""

import contextlib
from pathlib import Path

import apsw
import pytest

from onetray import Onetray
from onetray.domain.errors import StoreError
from onetray.engine import Engine
from onetray.store import open_store
from tests.cli.run import called


def test_a_store_that_is_only_looked_at_is_not_migrated(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/new.db", migrate=False)
    assert store.version() == 0
    store.close()


@pytest.mark.parametrize("name", ["a.db?mode=ro", "a#1.db", "a.db?", "a.db#"])
def test_a_url_whose_end_would_be_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="%23"):
        open_store(f"sqlite:///{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["sqlite:jobs.db", "sqlite:/jobs.db", "sqlite://jobs.db"])
def test_too_few_slashes_open_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The first character was taken for a slash: sqlite:jobs.db opened obs.db."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="write sqlite:///"):
        open_store(url)
    assert not list(tmp_path.iterdir())


def test_an_empty_url_is_refused() -> None:
    with pytest.raises(StoreError, match="the database is empty"):
        Onetray("")


def test_a_url_of_sqlalchemy_names_the_same_database(pg_url: str) -> None:
    theirs = pg_url.replace("postgresql://", "postgresql+psycopg://")
    assert Onetray(theirs).database == pg_url
    store = open_store(theirs)
    assert store.version() == 0
    store.close()
    assert called("migrate", "--database", theirs).exit_code == 0


def test_a_path_is_no_url(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="sqlite:///"):
        Engine.open(tmp_path / "a.db")  # type: ignore[arg-type]


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """Its schema's number stands where ours would: it was taken for a database that is up to date."""
    with contextlib.closing(apsw.Connection(str(tmp_path / "theirs.db"))) as theirs:
        theirs.execute("PRAGMA user_version = 1; CREATE TABLE customer (name)")
    with pytest.raises(StoreError, match="another program"):
        Engine.open(f"sqlite:///{tmp_path}/theirs.db")

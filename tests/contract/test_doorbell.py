"""The doorbell between processes that share a SQLite file: heard by all who listen, and not needed."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from onetray.engine import Engine
from onetray.notify.doorbell import DoorbellListener, DoorbellSender
from tests.support.engines import engine_on

PATIENCE_S = 60


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "jobs.db"
    file.touch()
    return str(file)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def until_the_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_everybody_at_the_file_hears_the_bell(path: str, until_the_end: ExitStack) -> None:
    bells = [until_the_end.enter_context(closing(DoorbellListener(path))) for _ in range(3)]
    until_the_end.enter_context(closing(DoorbellSender(path))).press("me 3=1")
    assert [bell.wait(PATIENCE_S) for bell in bells] == [["me 3=1"]] * 3


def test_a_file_has_one_bell_by_whatever_name(path: str, tmp_path: Path, until_the_end: ExitStack) -> None:
    (tmp_path / "another.db").symlink_to(path)
    bell = until_the_end.enter_context(closing(DoorbellListener(path)))
    until_the_end.enter_context(closing(DoorbellSender(str(tmp_path / "another.db")))).press("")
    assert bell.wait(PATIENCE_S)


def test_a_bell_that_has_rung_often_is_heard_once(path: str, until_the_end: ExitStack) -> None:
    bell = until_the_end.enter_context(closing(DoorbellListener(path)))
    button = until_the_end.enter_context(closing(DoorbellSender(path)))
    for number in range(10):
        button.press(str(number))
    assert bell.wait(PATIENCE_S) == [str(number) for number in range(10)]
    assert bell.wait(0.01) == []


def hears(url: str) -> bool:
    """Whether an engine that waits is woken by what another one commits to the same file."""
    with engine_on(url) as engine, engine_on(url) as another:
        seen = settled(engine)
        another.submit("mail")
        return engine.wake.wait(seen, PATIENCE_S) != seen


def settled(engine: Engine) -> int:
    """The generation once the listener has said hello."""
    return engine.wake.wait(engine.wake.generation, PATIENCE_S)


def test_a_commit_rings(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.notify.base.LOOK_ANYWAY_S", 3600.0)
    assert hears(url)


def test_a_commit_that_does_not_ring_is_noticed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a container of its own, where the file is shared and the network is not."""
    monkeypatch.setattr("onetray.store.sqlite.DoorbellSender.press", lambda button, news: None)
    assert hears(url)


def test_a_commit_that_does_not_ring_is_noticed_by_a_process_that_writes_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onetray.store.sqlite.DoorbellSender.press", lambda button, news: None)
    with engine_on(url) as engine, engine_on(url) as another:
        settled(engine)
        waiter = engine.wake.waiter([("default", "mail")])
        done = threading.Event()

        def write() -> None:
            while not done.wait(0.001):
                engine.submit("noise", queue="noise")

        writing = threading.Thread(target=write)
        writing.start()
        try:
            another.submit("letter", queue="mail")
            waiter.wait(waiter.seen(), PATIENCE_S)
            assert waiter.queue == ("default", "mail")
        finally:
            done.set()
            writing.join()


def test_a_machine_without_a_loopback_interface_can_do_without(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def refuse(_: str) -> None:
        asked.set()
        raise OSError("no such device")

    monkeypatch.setattr("onetray.notify.base.DoorbellListener", refuse)
    monkeypatch.setattr("onetray.store.sqlite.DoorbellSender", refuse)
    assert hears(url)
    assert asked.is_set()

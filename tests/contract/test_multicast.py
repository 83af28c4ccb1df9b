"""Multicast between processes that share a SQLite file: all of them receive it, and none depends on it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from onetray.domain.errors import OnetrayError
from onetray.engine import Engine
from onetray.notify.multicast import MulticastReceiver, MulticastSender
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


def test_every_process_at_the_file_receives_a_datagram(path: str, until_the_end: ExitStack) -> None:
    receivers = [until_the_end.enter_context(closing(MulticastReceiver(path))) for _ in range(3)]
    until_the_end.enter_context(closing(MulticastSender(path))).send("me 3=1")
    assert [receiver.wait(PATIENCE_S) for receiver in receivers] == [["me 3=1"]] * 3


def test_a_file_has_one_address_by_whatever_name(path: str, tmp_path: Path, until_the_end: ExitStack) -> None:
    (tmp_path / "another.db").symlink_to(path)
    receiver = until_the_end.enter_context(closing(MulticastReceiver(path)))
    until_the_end.enter_context(closing(MulticastSender(str(tmp_path / "another.db")))).send("")
    assert receiver.wait(PATIENCE_S)


def test_one_wait_returns_all_datagrams_that_have_arrived(path: str, until_the_end: ExitStack) -> None:
    receiver = until_the_end.enter_context(closing(MulticastReceiver(path)))
    sender = until_the_end.enter_context(closing(MulticastSender(path)))
    for number in range(10):
        sender.send(str(number))
    assert receiver.wait(PATIENCE_S) == [str(number) for number in range(10)]
    assert receiver.wait(0.01) == []


def notices(url: str) -> bool:
    """Whether an engine that waits is woken by what another one commits to the same file."""
    with engine_on(url) as engine, engine_on(url) as another:
        seen = settled(engine)
        another.submit("mail")
        return engine.wake.wait(seen, PATIENCE_S) != seen


def settled(engine: Engine) -> int:
    """The generation once the listener has said hello."""
    return engine.wake.wait(engine.wake.generation, PATIENCE_S)


def test_a_commit_sends_a_datagram(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.notify.base.POLL_FILE_WITH_MULTICAST_S", 3600.0)
    assert notices(url)


def test_a_commit_without_a_datagram_is_noticed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a container of its own, where the file is shared and the network is not."""
    monkeypatch.setattr("onetray.store.sqlite.MulticastSender.send", lambda sender, text: None)
    assert notices(url)


def test_a_commit_without_a_datagram_is_noticed_by_a_process_that_writes_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onetray.store.sqlite.MulticastSender.send", lambda sender, text: None)
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

    monkeypatch.setattr("onetray.notify.base.MulticastReceiver", refuse)
    monkeypatch.setattr("onetray.store.sqlite.MulticastSender", refuse)
    assert notices(url)
    assert asked.is_set()


@pytest.fixture
def heard_before_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[list[str]]]]:
    """Records the datagrams that have arrived at each commit, at a path."""
    heard: list[list[str]] = []
    with ExitStack() as stack:

        def listen(path: str) -> list[list[str]]:
            receiver = stack.enter_context(closing(MulticastReceiver(path)))

            def hook(point: str) -> None:
                if point == "committing":
                    heard.append(receiver.wait(0.01))

            monkeypatch.setattr("onetray.failpoints.hook", hook)
            return heard

        yield listen


def test_work_is_announced_before_its_commit(url: str, heard_before_commits: Callable[[str], list[list[str]]]) -> None:
    with engine_on(url) as engine:
        engine.store.names.intern_queue(engine.store.names.intern_namespace("default"), "mail")
        heard = heard_before_commits(url.removeprefix("sqlite:///"))
        engine.submit("letter", queue="mail")
        assert any(datagram.endswith("=1") for datagram in heard[-1])


def test_a_worker_that_was_told_before_the_commit_finds_the_task(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the lock of the transaction that adds the task."""
    claimed: list[str] = []
    with engine_on(url) as engine, engine_on(url) as worker:

        def claim() -> None:
            claimed.extend(task.id for task in worker.claim(worker="w"))

        claiming = threading.Thread(target=claim)
        engine.store.before_commit.append(lambda work: claiming.start())
        task = engine.submit("letter").id
        claiming.join(PATIENCE_S)
    assert claimed == [task]


def test_work_that_was_announced_and_not_committed_harms_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(point: str) -> None:
        if point == "committing":
            raise OSError("the disk is gone")

    with engine_on(url) as engine, engine_on(url) as worker:
        engine.submit("letter")
        assert len(worker.claim(worker="w")) == 1
        settled(worker)
        waiter = worker.wake.waiter([("default", "default")])
        seen = waiter.seen()
        monkeypatch.setattr("onetray.notify.wake.NOTIFY_EVERY_S", 0.0)
        monkeypatch.setattr("onetray.failpoints.hook", fail)
        with pytest.raises(OnetrayError, match="the disk is gone"):
            engine.submit("letter")
        monkeypatch.setattr("onetray.failpoints.hook", None)
        waiter.wait(seen, PATIENCE_S)
        assert worker.claim(worker="w") == []
        task = engine.submit("letter").id
        assert [found.id for found in worker.claim(worker="w")] == [task]


def test_who_waits_for_a_commit_is_told_after_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is announced before its commit, and whoever reads then finds nothing."""
    monkeypatch.setattr("onetray.notify.base.POLL_FILE_WITH_MULTICAST_S", 3600.0)
    announced: list[int] = []
    with engine_on(url) as engine, engine_on(url) as reader:
        seen = settled(reader)
        engine.submit("letter")
        seen = reader.wake.wait(seen, PATIENCE_S)
        monkeypatch.setattr("onetray.notify.wake.NOTIFY_EVERY_S", 0.0)

        def hook(point: str) -> None:
            if point == "committing":
                announced.append(reader.wake.wait(seen, PATIENCE_S))

        monkeypatch.setattr("onetray.failpoints.hook", hook)
        engine.submit("letter")
        assert reader.wake.wait(announced[0], PATIENCE_S) > announced[0] > seen

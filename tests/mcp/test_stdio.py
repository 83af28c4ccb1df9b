"""`onetray mcp`: its options, and how it begins and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from onetray.domain.commands import Claim
from onetray.domain.token import READ, SUBMIT
from onetray.engine import Engine
from onetray.http.auth.token_cache import LOCAL
from onetray.http.claim_waiters import ClaimWaiters
from onetray.mcp.call import Backend, Call
from onetray.mcp.registry import load_tools
from onetray.mcp.waiting import claimed
from tests.mcp.agents import LEGACY, agent, process
from tests.mcp.conftest import at
from tests.mcp.test_scopes import SCOPE_OF
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.relayed import relayed_command
from tests.support.waits import wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database for what differs on none: test_native_tools.py runs on both."""
    return migrated_sqlite(tmp_path)


def test_read_only_offers_no_tool_that_changes_anything(url: str, queue: str) -> None:
    with agent(process("--database", url, "--read-only"), LEGACY) as reader:
        assert reader.tools().keys() & SCOPE_OF.keys() == {"find_jobs", "inspect_job"}
        assert reader.call("find_jobs", queue=queue)["jobs"] == []


def test_the_namespace_is_an_option(url: str, queue: str) -> None:
    with agent(process("--database", url, "--namespace", f"ns-{queue}", "--tools", "native")) as ours:
        id_ = ours.submit(queue)
        (log,) = ours.portal.call(ours.client.read_resource, f"onetray://jobs/{id_}/log").contents
        assert id_ in log.text  # type: ignore[union-attr]
    with engine_on(url) as engine:
        assert engine.task(id_, namespace=f"ns-{queue}").state == "queued"


def test_a_server_is_a_database_too(queue: str) -> None:
    with (
        engine_on("sqlite://:memory:") as engine,
        at(engine) as server,
        agent(process("--database", server.url)) as there,
    ):
        id_ = there.submit(queue)
        held = there.claim(queue)
        there.call("report_progress", **held, done=1, notes="n")
        there.call("ask_human", **held, question="?", form={"type": "string"})
        assert there.call("inspect_job", id=id_)["question"]["form"] == {"type": "string"}
        assert "is not of type" in there.refusal("answer_human", id=id_, answer=1)
        there.call("answer_human", id=id_, answer="yes")
        (task,) = there.call("claim_work", worker="ann", queue=queue, wait_s=10)["tasks"]
        assert task["untrusted"] == {"payload": None, "answer": "yes", "notes": "n"}


def test_the_scopes_and_the_namespace_of_the_servers_token_count(queue: str) -> None:
    with engine_on("sqlite://:memory:") as engine, at(engine) as server:
        secret = engine.tokens.create("ann", [READ, SUBMIT], namespace="of-ann").text
        words = ("--database", server.url, "--namespace", "of-ann")
        with agent(process(*words, ONETRAY_TOKEN=secret)) as there:
            id_ = there.submit(queue)
            assert there.refusal("claim_work", worker="ann", queue=queue).startswith("Forbidden: ")
        assert engine.task(id_, namespace="of-ann").state == "queued"


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ONETRAY_")}
    return subprocess.run(
        relayed_command("onetray", "mcp", *words), capture_output=True, text=True, timeout=60, env=environment,
        check=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--tools", "nothing"], 2, "'nothing' is not one of 'native'"),
        (["--database", "mysql://x"], 2, "sqlite:///relative.db"),
        (["--database", "http://127.0.0.1:1"], 3, "127.0.0.1:1"),
    ],
)
def test_wrong_options_are_said_in_one_line(words: list[str], code: int, said: str) -> None:
    ended = run(*words)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert ended.stdout == ""


def test_it_ends_with_its_input_and_writes_nothing_but_answers(tmp_path: Path) -> None:
    handshake = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    with started("--database", migrated_sqlite(tmp_path), relayed=False) as program:
        opened = said_to(program, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": handshake})
        assert opened["result"]["serverInfo"]["name"] == "onetray"
        write(program, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        write(program, "not json")
        answer = said_to(program, {"jsonrpc": "2.0", "id": 2, "method": "nothing/here"})
        # An answer to the line that is no JSON may come first.
        answer = answer if answer.get("id") == 2 else read_line(program)
        assert answer["error"]["code"] == -32601
        unknown = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "nothing"}}
        assert said_to(program, unknown)["error"]["code"] == -32602
        rest, log = program.communicate(timeout=60)
        assert (program.returncode, rest) == (0, ""), log


@contextmanager
def started(*words: str, relayed: bool = True) -> Iterator[subprocess.Popen[str]]:
    """`onetray mcp`, without a client."""
    command = relayed_command("onetray", "mcp", *words) if relayed else [sys.executable, "-m", "onetray", "mcp", *words]
    program = subprocess.Popen(
        command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def write(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(line + "\n")
    program.stdin.flush()


def read_line(program: subprocess.Popen[str]) -> dict[str, Any]:
    assert program.stdout is not None
    answer: dict[str, Any] = json.loads(program.stdout.readline())
    return answer


def said_to(program: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any]:
    write(program, json.dumps(request))
    return read_line(program)


def test_a_killed_agents_work_goes_to_the_next(url: str, queue: str) -> None:
    """Each process has a janitor: nothing else has to run."""
    with agent(process("--database", url), LEGACY) as bob:
        id_ = bob.submit(queue)
        envelope = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        claim = {"worker": "ann", "queue": queue, "lease_s": 0.5}
        params = {"name": "claim_work", "arguments": claim, "_meta": envelope}
        with started("--database", url) as doomed:
            answer = said_to(doomed, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            assert answer["result"]["structuredContent"]["tasks"][0]["id"] == id_
            doomed.send_signal(signal.SIGKILL)
        (task,) = bob.call("claim_work", worker="bob", queue=queue, wait_s=30)["tasks"]
        assert (task["id"], task["attempt"]) == (id_, "2 of 3")
        bob.call("finish_work", id=id_, fence=task["fence"], worker="bob", outcome="succeeded")


def test_a_cancelled_wait_ends_and_its_job_goes_on(url: str, queue: str) -> None:
    with agent(process("--database", url), LEGACY) as ann:

        async def leave() -> None:
            with anyio.move_on_after(0.5):
                await ann.client.call_tool("run_job", {"kind": "a", "queue": queue, "wait_s": 600})

        ann.portal.call(leave)
        (job,) = ann.call("find_jobs", queue=queue)["jobs"]
        assert job["state"] == "queued"


def test_a_claim_that_is_cancelled_gives_its_tasks_back(shared_engine: Engine, queue: str) -> None:
    """The claim is in the database before the caller is told of it: what nobody gets goes back at once."""
    engine = shared_engine
    id_ = str(engine.submit("review", queue=queue).id)

    async def cancelled() -> None:
        call = Call(Backend(engine, load_tools("native"), ClaimWaiters(engine.wake)), LOCAL)
        held, reached = asyncio.Event(), asyncio.Event()

        class Slow(Call):
            async def send(self, command: Any) -> Any:
                claimed = await Call.send(self, command)
                reached.set()
                await held.wait()
                return claimed

        slow = Slow(call.backend, LOCAL)
        claim = asyncio.create_task(claimed(slow, call.command(Claim, worker="ann", queue=queue, start=True), 0.0))
        await reached.wait()
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        held.set()
        await asyncio.sleep(0)
        await asyncio.to_thread(wait_until, lambda: engine.task(id_).state == "queued", 30)

    asyncio.run(cancelled())
    assert engine.task(id_).attempts == 0


def test_it_ends_at_once_while_a_call_waits(tmp_path: Path, queue: str) -> None:
    with started("--database", migrated_sqlite(tmp_path)) as program:
        envelope = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        for id_, (tool, arguments) in enumerate(
            {"claim_work": {"worker": "a", "wait_s": 300}, "run_job": {"kind": "b", "wait_s": 600}}.items()
        ):
            params = {"name": tool, "arguments": {"queue": queue, **arguments}, "_meta": envelope}
            write(program, json.dumps({"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}))
        listed = {"jsonrpc": "2.0", "id": 9, "method": "tools/list", "params": {"_meta": envelope}}
        assert said_to(program, listed)["id"] in (0, 9)
        _, log = program.communicate(timeout=20)
        assert program.returncode == 0, log

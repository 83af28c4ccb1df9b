"""A server with the tools that the official MCP conformance tests call for tasks, and a worker that runs them.

The tools are a tool set like any other: what is tried is our registry, our transport and our map of jobs onto tasks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import Field

from onetray.config import TOOL_SETS
from onetray.domain import commands as c
from onetray.domain.lifecycle import WAITING_INPUT
from onetray.domain.task import Assignment
from onetray.domain.token import READ, SUBMIT
from onetray.engine import Engine
from onetray.http.app import build
from onetray.mcp.arguments import Arguments
from onetray.mcp.call import Call
from onetray.mcp.jobs import FORM, job_outcome
from onetray.mcp.native import error_text
from onetray.mcp.registry import Tool, ToolSet
from onetray.mcp.waiting import until_over
from tests.support.engines import open_migrated

CONFORMANCE, INSPECTOR = "@modelcontextprotocol/conformance@0.2.0-alpha.12", "@modelcontextprotocol/inspector@2.12.0"
ROOT = Path(__file__).parents[2]
CACHE, EXPECTED = ROOT / ".cache/mcp-npm", ROOT / "tests/support/mcp_expected_failures.yml"
QUEUE = "conformance"
CONFIRM = {"type": "object", "properties": {"confirm": {"type": "boolean"}}}


class Greet(Arguments):
    name: str = Field(description="Whom to greet.")


class Slow(Arguments):
    seconds: float = 1.0
    label: str = ""
    filename: str = ""


def greet(call: Call, wanted: Greet) -> dict[str, str]:
    return {"said": f"Hello, {wanted.name}!"}


def job_tool(name: str) -> Tool:
    async def begin(call: Call, wanted: Slow) -> str:
        receipt = await call.do(c.Submit, kind=name, payload=wanted.model_dump(), queue=QUEUE, max_attempts=1)
        return str(receipt.id)

    async def run(call: Call, wanted: Slow) -> Any:
        job = await until_over(call, await begin(call, wanted), 30.0)
        return await call.in_thread(job_outcome, call, job)

    return Tool(
        name=name, title=name, description=f"The tool {name} of the conformance tests.", arguments=Slow, handler=run,
        scopes=(SUBMIT, READ), as_task=begin,
    )  # fmt: skip


TOOL_SET = ToolSet(
    name="conformance",
    instructions="",
    tools=(
        Tool(
            name="greet",
            title="greet",
            description="Says hello.",
            arguments=Greet,
            handler=greet,
            scopes=(READ,),
        ),
        *map(job_tool, ("slow_compute", "failing_job", "confirm_delete")),
    ),
    error_text=error_text,
)


def work(engine: Engine) -> None:
    """Run the jobs, each in a thread: the tests cancel some of them."""
    while True:
        for task in engine.claim(QUEUE, worker="conformance", limit=100, lease_s=120, start=True):
            threading.Thread(target=run_task, args=(engine, task), daemon=True).start()
        time.sleep(0.02)


def run_task(engine: Engine, task: Assignment) -> None:
    if task.kind == "failing_job":
        engine.fail(task, "it always fails", retryable=False)
    elif task.kind == "confirm_delete" and task.input is None:
        engine.checkpoint(task, {FORM: CONFIRM})
        engine.pause(task, state=WAITING_INPUT, owner="the user", reason=f"Delete {task.payload['filename']}?")
    else:
        until = time.monotonic() + (task.payload["seconds"] if task.kind == "slow_compute" else 0)
        while time.monotonic() < until:
            if task.id in engine.beat(task).cancel:
                engine.release(task, reason="it was cancelled")
                return
            time.sleep(0.05)
        engine.succeed(task, {"label": task.payload["label"]})


def try_protocol(url: str, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Run the conformance tests of servers, and Inspector's command line, against a server. Returns what failed."""
    programs = _npm_programs()
    conformance = [*programs, str(CACHE / "node_modules/.bin/conformance"), "server", "--url", f"{url}/mcp"]
    options = ["--suite", "all", "--timeout", "30000", "--expected-failures", str(EXPECTED), "-o", str(folder)]
    ended = subprocess.run([*conformance, *options], capture_output=True, text=True, check=False)
    say(ended.stdout.partition("=== SUMMARY ===")[2].strip())
    faults = [] if ended.returncode == 0 else [f"conformance: {ended.stdout[-2_000:]} {ended.stderr[-1_000:]}"]
    inspector = [*programs, str(CACHE / "node_modules/.bin/mcp-inspector"), "--cli", f"{url}/mcp"]
    for words, expected in (
        (["tools/list"], '"submit_job"'),
        (["tools/call", "--tool-name", "submit_job", "--tool-arg", "kind=review"], '"queued"'),
        (["resources/read", "--uri", "onetray://lifecycle/task"], "stateDiagram-v2"),
    ):
        command = [*inspector, "--transport", "http", "--method", *words]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        say(f"inspector {words[0]}: {'ok' if expected in ended.stdout else 'FAILED'}")
        if expected not in ended.stdout:
            faults.append(f"inspector {words[0]}: {ended.stdout[-500:]} {ended.stderr[-500:]}")
    return faults


def _npm_programs() -> list[str]:
    """Node, once the packages are installed."""
    from tests.support.node import recent_node

    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is not on PATH: install Node, for example `apt install npm`")
    CACHE.mkdir(parents=True, exist_ok=True)
    install = [npm, "install", "--prefix", str(CACHE), "--no-audit", "--no-fund", "--silent", CONFORMANCE, INSPECTOR]
    subprocess.run(install, check=True)
    return [recent_node()]


def main(database: str, port: str) -> None:
    TOOL_SETS["conformance"] = "tests.support.mcp_conformance"
    with open_migrated(database) as engine:
        engine.janitor().start()
        threading.Thread(target=work, args=(engine,), daemon=True).start()
        uvicorn.run(build(engine), host="127.0.0.1", port=int(port), log_level="error", lifespan="off")


if __name__ == "__main__":
    main(*sys.argv[1:])

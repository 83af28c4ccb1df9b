"""What a type checker knows about declared tasks and flows: arguments, results, keywords."""

import inspect
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

from onetray import Policy
from onetray.app.flows import FlowDefinition
from onetray.app.rules import (
    FlowOptions,
    Isolation,
    OnFailure,
    PolicyRules,
    RollUp,
    SharedRules,
    StageRules,
    WorkerRules,
)
from onetray.app.tasks import ISOLATION
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.policy import ON_EXHAUSTION
from onetray.domain.rollup import ON_FAILURE, ROLL_UPS
from onetray.worker import WorkerConfig

ROOT = Path(__file__).resolve().parents[2]
KNOWN = ROOT / ".cache/mypy-of-tests"

PROGRAM = """
from typing import TypedDict

from onetray import Approval, BatchItem, Onetray, ctx
from onetray.testing import Harness, run_inline

app = Onetray()

class Config:
    names: list[str]

class Results(TypedDict):
    fetch: list[str]

@app.task
def plain(n: int, note: str = "") -> str:
    return note * n

@app.task(queue="mail", retries=3)
async def ruled(n: int) -> list[int]:
    return [n]

reveal_type(plain.submit(1))
reveal_type(plain.submit(n=1).result())
reveal_type(ruled.submit(n=2).result())
reveal_type(plain.options(delay_s=5).submit(1).result())
reveal_type(plain.submit_many([{"n": 1}]))
reveal_type(ctx.attempt)

flow = app.flow("news", config=Config, results=Results, retries=2, roll_up="mixed", retry_on=[OSError, "Timeout"])
loose = app.flow("loose")

@flow.stage
def fetch(config: Config) -> list[str]:
    return config.names

@flow.stage(each=fetch, when=lambda config: config.names, approve=Approval(owner="ann"), on_failure="continue")
async def save(item: str) -> int:
    return len(item)

reveal_type(flow.submit(Config(), labels={"a": "b"}))
reveal_type(flow.submit({"names": []}).result())
reveal_type(loose.submit().result())
reveal_type(app.submit(plain, {"n": 1}, priority=3).result())
reveal_type(app.submit("plain").result())
reveal_type(app.job("x").progress().percentage)
reveal_type(app.job("x").children().jobs[0].kind)
reveal_type(app.worker(concurrency=3, queues=["mail"]).name)

async def main() -> None:
    reveal_type(await (await ruled.aio.submit(3)).result())
    reveal_type(await (await flow.aio.submit(Config())).result())
    reveal_type(await (await app.aio.job("x")).retry(from_stage="fetch"))

with Harness(app) as harness, run_inline(app) as inline:
    reveal_type(harness.drain())
    reveal_type(inline.events(plain.submit(1)))

@app.task(batch=10, batch_s=0.5, debounce_s=5, debounce_key="n")
def gathered(items: list[BatchItem[dict[str, int]]]) -> list[int | Exception]:
    return [item.payload["n"] for item in items]

reveal_type(gathered.options(debounce_s=None).submit(n=1))

plain.submit("one")
plain.submit()
plain.submit(1, loud=True)
ruled.submit(n=None)
plain.options(prio=1)
app.submit("plain", {}, prio=1)
app.task(retires=3)
app.task(retries="three")
app.task(retry_on=OSError)
app.flow("other", concurency=3)
app.flow("other", roll_up="nonsense")
flow.stage(aprove="ann")
flow.stage(on_failure="nonsense")
flow.submit(3)
flow.submit(idempotencykey="k")
app.worker(concurency=3)
fetch()
fetch(3)
"""

REVEALED = [
    "onetray.app.job.Job[str]", "str", "list[int]", "str", "list[onetray.app.job.Job[str]]", "int",
    "onetray.app.job.Job[TypedDict(program.Results, {'fetch': list[str]})]",
    "TypedDict(program.Results, {'fetch': list[str]})", "dict[str, Any]", "str", "Any", "int", "str", "str",
    "list[int]", "TypedDict(program.Results, {'fetch': list[str]})", "onetray.app.async_api.AsyncJob[Any]",
    "int", "list[str]", "onetray.app.job.Job[Any]",
]  # fmt: skip

REFUSED = [
    "arg-type", "call-arg", "call-arg", "arg-type", "call-arg", *["call-overload"] * 8, "arg-type", "call-arg",
    "call-arg", "call-arg", "arg-type",
]  # fmt: skip
"""Of the lines at the end of the program, in order."""


def test_the_keywords_are_those_that_the_engine_has() -> None:
    own = {"name", "stages", "data", "data_json", "namespace", "as_declared"}
    assert set(PolicyRules.__annotations__) == {field.name for field in fields(Policy)}
    assert set(FlowOptions.__annotations__) == {field.name for field in fields(SubmitFlow)} - own
    assert set(WorkerRules.__annotations__) == {field.name for field in fields(WorkerConfig)}
    given = inspect.signature(FlowDefinition._add).parameters.keys() - {"self", "function", "rules"}
    assert set(StageRules.__annotations__) - set(SharedRules.__annotations__) == given
    choices = [(Isolation, ISOLATION), (RollUp, ROLL_UPS), (OnFailure, ON_FAILURE)]
    assert [get_args(alias) for alias, _ in choices] == [names for _, names in choices]
    assert get_args(get_type_hints(PolicyRules)["on_exhaustion"]) == ON_EXHAUSTION


def test_a_type_checker_knows_arguments_and_results(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    # One call for all of it: each takes seconds. What mypy knows of unchanged modules is kept for the next run.
    options = ("--strict", "--follow-imports=silent", "--no-error-summary", f"--cache-dir={KNOWN}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.replace("builtins.", "").splitlines()
    assert [line.split('"')[1] for line in lines if "Revealed type" in line] == REVEALED, done.stdout
    # Of an overload mypy tells an unknown keyword twice.
    errors = {line.split(":")[1]: line for line in lines if ": error: " in line}
    assert [line.rpartition("[")[2].rstrip("]") for line in errors.values()] == REFUSED, done.stdout

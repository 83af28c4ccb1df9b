"""What a type checker knows about declared tasks: their arguments and their results."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
from onetray import Onetray, ctx
from onetray.testing import Harness, run_inline

app = Onetray()

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

async def main() -> None:
    reveal_type(await (await ruled.aio.submit(3)).result())

with Harness(app) as harness, run_inline(app) as inline:
    reveal_type(harness.drain())
    reveal_type(inline.events(plain.submit(1)))

plain.submit("one")
plain.submit()
plain.submit(1, loud=True)
ruled.submit(n=None)
plain.options(prio=1)
"""

REVEALED = [
    "onetray.app.job.Job[str]", "str", "list[int]", "str", "list[onetray.app.job.Job[str]]", "int", "list[int]",
    "int", "list[str]",
]  # fmt: skip

REFUSED = ["arg-type", "call-arg", "call-arg", "arg-type", "call-arg"]


def test_a_type_checker_knows_arguments_and_results(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    # One call for all of it: each takes seconds.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.replace("builtins.", "").splitlines()
    assert [line.split('"')[1] for line in lines if "Revealed type" in line] == REVEALED, done.stdout
    errors = [line for line in lines if ": error: " in line]
    assert [line.rpartition("[")[2].rstrip("]") for line in errors] == REFUSED, done.stdout

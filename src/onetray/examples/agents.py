"""Two scripted agents share reviews by MCP, one of them vanishes, and one asks a person. No model is needed.

    python -m onetray.examples.agents --database sqlite:///agents.db

Each agent is a client of its own `onetray mcp` process, as a real one would be; only their thoughts are scripted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters

QUEUE = "reviews"
ARTICLES = ("bridges", "cheese", "ferries", "salaries", "tides", "trains")
TOUCHY = "salaries"
"""A reviewer does not decide alone whether this may be published."""
FORM = {
    "type": "object",
    "properties": {"publish": {"type": "boolean", "title": "May it be published?"}},
    "required": ["publish"],
}
LEASE_S = 2.0


class Agent:
    """A client with a name, which says what it does."""

    def __init__(self, name: str, client: Client) -> None:
        self.name, self._client = name, client

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self._client.call_tool(tool, arguments)
        if result.is_error:
            raise RuntimeError(f"{tool}: {result.content}")
        answer: dict[str, Any] = result.structured_content
        return answer


async def author(agent: Agent) -> list[str]:
    """Submit all articles for review."""
    jobs = []
    for article in ARTICLES:
        job = await agent.call(
            "submit_job", kind="review", queue=QUEUE, payload={"article": article}, idempotency_key=f"review {article}"
        )
        jobs.append(job["id"])
    agent.say(f"submitted {len(jobs)} articles")
    return jobs


async def reviewer(agent: Agent, *, vanishes: bool = False) -> None:
    """Review what there is, until nothing is left for a while."""
    while tasks := (await agent.call("claim_work", worker=agent.name, queue=QUEUE, lease_s=LEASE_S, wait_s=4))["tasks"]:
        task, foreign = tasks[0], tasks[0]["untrusted"]
        held = {"id": task["id"], "fence": task["fence"], "worker": agent.name}
        article = foreign["payload"]["article"]
        if vanishes:
            await agent.call("report_progress", **held, notes="read the first half", lease_s=LEASE_S)
            agent.say(f"vanishes in the middle of {article}")
            return
        if foreign.get("notes"):
            agent.say(f"goes on with {article}: {foreign['notes']}")
        if article == TOUCHY and "answer" not in foreign:
            await agent.call(
                "ask_human", **held, question=f"May we publish {article}?", to="the editor", form=FORM,
                notes="reviewed, only the decision is missing",
            )  # fmt: skip
            agent.say(f"asks a person about {article}")
            continue
        verdict = "publish" if foreign.get("answer", {}).get("publish", True) else "keep back"
        await agent.call("finish_work", **held, outcome="succeeded", result={"article": article, "verdict": verdict})
        agent.say(f"reviewed {article}: {verdict}")


async def editor(agent: Agent) -> None:
    """The person: looks for questions, and answers the first one."""
    while not (found := (await agent.call("find_jobs", states=["waiting_input"], queue=QUEUE))["jobs"]):
        await asyncio.sleep(0.1)
    asked = (await agent.call("inspect_job", id=found[0]["id"]))["question"]
    agent.say(f"is asked: {asked['untrusted']}")
    await agent.call("answer_human", id=found[0]["id"], answer={"publish": False})
    agent.say("answers: no")


async def main(database: str) -> None:
    program = StdioServerParameters(command=sys.executable, args=["-m", "onetray", "mcp", "--database", database])
    async with Client(program) as first, Client(program) as second, Client(program) as third:
        desk, ann, bob = Agent("desk", first), Agent("ann", second), Agent("bob", third)
        jobs = await author(desk)
        await reviewer(bob, vanishes=True)
        await asyncio.gather(reviewer(ann), reviewer(Agent("cid", third)), editor(desk))
        for id_ in jobs:
            job = await desk.call("inspect_job", id=id_)
            print(f"{job['untrusted']['result']['article']}: {job['state']}, {job['untrusted']['result']['verdict']}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--database", default="sqlite:///agents.db", help="Where the jobs are kept.")
    asyncio.run(main(options.parse_args().database))

"""ask_human and answer_human: a task waits for a person, and continues with the answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from onetray.domain import commands as c
from onetray.domain.json_schema import must_be_schema
from onetray.domain.lifecycle import WAITING_INPUT
from onetray.domain.question import FORM, NOTES, left_behind
from onetray.domain.token import OPERATE, WORK
from onetray.mcp.arguments import Arguments
from onetray.mcp.call import Call
from onetray.mcp.jobs import answer_question, next_tools
from onetray.mcp.native.fields import NEXT, STATE, TEXT, Held, Id, claim_of, output, told_of
from onetray.mcp.registry import Tool


class AskHuman(Held):
    question: str = Field(
        min_length=1, max_length=2_000, description="The question, with everything that is needed to answer it."
    )
    to: str = Field(default="anybody", description="Who should answer.")
    form: dict[str, Any] | None = Field(
        default=None,
        description="A JSON Schema of the answer, for example an object with the properties of a form. "
        "An answer that does not satisfy it is rejected. Default: any answer.",
    )
    notes: Any = Field(default=None, description="What you have found out so far: you or another gets it back later.")


class AnswerHuman(Arguments):
    id: Id
    answer: Any = Field(description="The answer, as the form of the question requires it.")


def ask_human(call: Call, question: AskHuman) -> dict[str, Any]:
    if question.form is not None:
        must_be_schema(question.form, "form")
    about = claim_of(question)
    notes = question.notes
    if notes is None:
        notes = left_behind(call.checkpoint(question.id)).get(NOTES)
    left = {NOTES: notes, FORM: question.form}
    receipts = call.run_all(
        call.command(c.Checkpoint, question.id, body={k: v for k, v in left.items() if v is not None}, **about),
        call.command(c.Pause, question.id, state=WAITING_INPUT, owner=question.to, reason=question.question, **about),
    )
    return told_of(receipts[-1], question.id, call.may("claim_work", "inspect_job"))


def answer_human(call: Call, reply: AnswerHuman) -> dict[str, Any]:
    receipt = answer_question(call, reply.id, reply.answer)
    return told_of(receipt, reply.id, next_tools(call, receipt.state))


TOOLS = (
    Tool(
        name="ask_human",
        title="Ask a person",
        description="Pause a claimed task until a person has answered a question. You give up the task: once it is "
        "answered, it returns to its queue, and whoever claims it next, you or another agent, gets the answer and your "
        "notes. It costs no attempt. Write a question that can be answered without this conversation.",
        arguments=AskHuman,
        handler=ask_human,
        scopes=(WORK,),
        output=output(("id", "state"), id=TEXT, state=STATE, next=NEXT),
    ),
    Tool(
        name="answer_human",
        title="Answer a question",
        description="Pass on a person's answer to a job that waits for it (waiting_input), or resume a blocked job. "
        "inspect_job shows the question and the form. Only pass on what a person has said: never invent an answer.",
        arguments=AnswerHuman,
        handler=answer_human,
        scopes=(OPERATE,),
        output=output(("id", "state"), id=TEXT, state=STATE, next=NEXT),
    ),
)

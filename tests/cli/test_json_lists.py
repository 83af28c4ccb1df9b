"""Lists as JSON: all have the same form."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Place
from tests.cli.run import called, told
from tests.cli.test_workers import beat
from tests.support.tasks import submit

LISTS = {
    "jobs": ["jobs", "list"],
    "tasks": ["tasks", "list", "FLOW"],
    "stages": ["stages", "list", "FLOW"],
    "queues": ["queues", "list"],
    "workers": ["workers"],
    "breakers": ["breakers", "list"],
    "flows": ["flows", "list"],
    "groups": ["dead", "list"],
    "dead_letters": ["dead", "list", "--each"],
    "tokens": ["token", "list"],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_under_its_name_with_what_follows(place: Place, name: str) -> None:
    submit(place.engine)
    place.dead()
    beat(place, "w1")
    place.engine.open_breaker("sync", for_s=60, by="ann", why="x")
    place.engine.tokens.create("ci", ("read",))
    flow = place.flow()
    answer = told(*[flow if word == "FLOW" else word for word in LISTS[name]], *place.at)
    assert list(answer)[:3] == [name, "more", "next"]
    assert isinstance(answer[name], list)
    assert (answer["more"], answer["next"]) == (False, None)
    assert answer[name] or name == "flows"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("jobs list", "there are no jobs in the namespace default: submit one with `onetray submit KIND`"),
        ("jobs list --state failed", "no jobs match in the namespace default: leave out a filter"),
        ("queues list", "there are no queues"),
        ("workers", "no worker of the namespace default is registered: start one with `onetray worker --app"),
        ("workers --alive", "no worker of the namespace default is alive: start one with `onetray worker --app"),
        ("breakers list", "there are no breakers"),
        ("flows list", "no flow is declared: a worker declares those of its app"),
        ("dead list", "there are no dead letters; --redriven"),
        ("dead list --each --kind mail", "no dead letters match; --redriven"),
        ("token list", "there are no tokens: create one with `onetray token create"),
    ],
)
def test_an_empty_list_says_what_to_do_and_leaves_a_pipe_empty(place: Place, words: str, says: str) -> None:
    done = called(*words.split(), *place.at)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith(says), done.stderr


def test_a_list_that_is_cut_says_so(place: Place) -> None:
    ids = [submit(place.engine, queue=f"q{n}") for n in range(3)]
    queues = told("queues", "list", "--limit", "2", *place.at)
    assert (len(queues["queues"]), queues["more"], queues["next"]) == (2, True, None)
    jobs = told("jobs", "list", "--limit", "2", *place.at)
    assert (jobs["more"], jobs["next"], jobs["before"]) == (True, ids[1], ids[1])
    last = told("jobs", "list", "--before", jobs["next"], *place.at)
    assert ([job["id"] for job in last["jobs"]], last["more"]) == ([ids[0]], False)

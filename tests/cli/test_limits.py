"""`onetray limits`: list and show limits, change them, set weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told
from tests.support.cases import each_case
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.tasks import submit

BY_TENANT = Policy(concurrency=(Concurrency(2, key="tenant"),), fair_by="tenant")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A file without limits, for commands that are refused."""
    url = migrated_sqlite(tmp_path_factory.mktemp("limits"))
    with engine_on(url) as engine:
        engine.configure("send", BY_TENANT)
        engine.set_limit(queue="mail", concurrency=1)
        yield Place(url, engine)


def test_a_limit_is_set_listed_and_removed(place: Place) -> None:
    words = ("limits", "set", "--queue", "mail", "--concurrency", "10", "--reason", "slow server", *place.at)
    done = called(*words, LOGNAME="ann")
    (limit,) = place.engine.limits()
    assert done.stdout == f"limit {limit.id}: concurrency of queue mail, 10 at once\n"
    assert (limit.most, limit.queue, limit.set_by) == (10, "mail", "ann")
    (event,) = place.engine.events_since(types=["limit.set"]).events
    assert (event.actor, event.cause) == ("user:ann", "slow server")
    line = called("limits", "list", *place.at).stdout.splitlines()[1]
    assert line.startswith(f"{limit.id} ")
    assert "concurrency of queue mail  10 at once  0        0" in line
    assert "ann, " in line
    assert "limit.set  concurrency of queue mail" in called("audit", *place.at).stdout
    assert told("limits", "remove", str(limit.id), *place.at) == {"limit": limit.id, "removed": True}
    assert place.engine.limits() == []


def test_a_rate_is_set_and_shown_as_it_was_written(place: Place) -> None:
    for rate in ("100/5m", "3/90s", "7/d"):
        words = ("limits", "set", "--kind", "send", "--rate", rate, "--smooth", *place.at)
        assert called(*words).stdout.endswith(f": rate of kind send, {rate} smooth\n")
    [listed] = told("limits", "list", "--kind", "send", *place.at)["limits"]
    assert (listed["what"], listed["most"], listed["per_s"], listed["smooth"]) == ("rate", 7, 86_400.0, True)
    assert told("limits", "list", "--queue", "send", *place.at)["limits"] == []


def test_who_set_a_limit_of_the_code_is_shown_until_it_is_reset(place: Place) -> None:
    place.engine.configure("send", BY_TENANT)
    (limit,) = place.engine.limits()
    called("limits", "set", "--kind", "send", "--key", "tenant", "--concurrency", "7", *place.at, LOGNAME="ann")
    listed = called("limits", "list", *place.at).stdout
    assert "concurrency of kind send by tenant  7 at once" in listed
    assert "; code: 2 at once" in listed
    done = called("limits", "reset", str(limit.id), *place.at)
    assert done.stdout == f"limit {limit.id}: concurrency of kind send by tenant, 2 at once\n"
    assert called("limits", "list", *place.at).stdout.rstrip().endswith("code")


def test_what_uses_a_limit_is_shown(place: Place) -> None:
    limit = place.engine.set_limit(queue="mail", concurrency=1)
    first, _ = submit(place.engine, queue="mail"), submit(place.engine, queue="mail")
    place.engine.claim("mail", worker="w1", limit=2)
    shown = told("limits", "show", str(limit), *place.at)
    assert (shown["limit"]["running"], shown["limit"]["waiting"], shown["values"], shown["next"]) == (1, 1, [], None)
    assert [(h["task"], h["worker"], h["state"]) for h in shown["holders"]] == [(first, "w1", "assigned")]
    text = called("limits", "show", str(limit), *place.at).stdout
    assert "allows   1 at once" in text
    assert first in text


def test_the_values_of_a_key_are_shown_a_page_at_a_time(place: Place) -> None:
    place.engine.configure("send", BY_TENANT)
    (limit,) = place.engine.limits()
    for tenant in ("acme", "acme", "acme", 17):
        submit(place.engine, "send", payload={"tenant": tenant})
    claimed = place.engine.claim(worker="w1", limit=10)
    first = told("limits", "show", str(limit.id), "--limit", "1", *place.at)
    rest = told("limits", "show", str(limit.id), "--after", str(first["next"]), *place.at)
    values = {v["value"]: (v["running"], v["blocked"]) for v in first["values"] + rest["values"]}
    assert values == {"acme": (2, 1), 17: (1, 0)}
    for written, running in (("acme", 2), ('"acme"', 2), ("17", 1), ('"17"', 0)):
        holders = told("limits", "show", str(limit.id), "--value", written, *place.at)["holders"]
        assert len(holders) == running, written
    text = called("limits", "show", str(limit.id), "--limit", "1", *place.at)
    assert "there may be more: --after " in text.stderr
    assert len(claimed) == 3


def test_a_weight_is_set_and_listed(place: Place) -> None:
    place.engine.configure("send", BY_TENANT)
    assert called("limits", "weight", "send", *place.at).stderr == "no weights are set: each value has the weight 1\n"
    done = called("limits", "weight", "send", "acme", "2.5", *place.at)
    assert done.stdout == '"acme" of kind send has the weight 2.5\n'
    assert told("limits", "weight", "send", "17", "3", *place.at) == {"kind": "send", "value": 17, "weight": 3.0}
    listed = told("limits", "weight", *place.at)["weights"]
    assert [(w["kind"], w["value"], w["weight"]) for w in listed] == [("send", "acme", 2.5), ("send", 17, 3.0)]


@each_case(
    "words, code, says",
    [
        ("set --concurrency 3", 2, "pass --queue or --kind"),
        ("set --queue a --kind b --concurrency 3", 2, "pass --queue or --kind"),
        ("set --queue a", 2, "pass --concurrency or --rate"),
        ("set --queue a --concurrency 3 --rate 1/s", 2, "pass --concurrency or --rate"),
        ("set --queue a --concurrency 3 --smooth", 2, "pass --rate"),
        ("set --queue a --rate often", 2, "a rate is a number and a period, as 10/s"),
        ("set --queue a --rate 5/31d", 2, "from 1 second to 30 days"),
        ("set --queue a --concurrency -1", 2, "-1 is not in the range"),
        ("set --queue a --key tenant --concurrency 1", 2, "a limit with a key is for a kind"),
        ("set --kind send --key shop --concurrency 1", 2, "declare it in code, with concurrency=Concurrency"),
        ("set --kind other --key tenant --concurrency 1", 2, "it has: none"),
        ("show 99999", 4, "there is no limit 99999"),
        ("remove 99999", 4, "there is no limit 99999"),
        ("reset MAIL", 5, "the code declares no such limit: remove it"),
        ("remove SEND", 5, "the code declares this limit: remove it there"),
        ("weight send acme", 2, "pass the weight, too"),
        ("weight send acme 0", 2, "weight must be a number from 0.01 to 1000"),
        ("weight send acme nan", 2, "weight must be a number from 0.01 to 1000"),
        ("weight other acme 2", 2, "the kind other is not fair by anything: declare fair_by="),
    ],
)
def test_what_is_refused_says_what_to_do(shared: Place, words: str, code: int, says: str) -> None:
    ids = {limit.queue or limit.kind: str(limit.id) for limit in shared.engine.limits()}
    arguments = [{"MAIL": ids["mail"], "SEND": ids["send"]}.get(word, word) for word in words.split()]
    done = called("limits", *arguments, *shared.at)
    assert (done.exit_code, one_line(done.stderr)) == (code, True), done.stderr
    assert says in done.stderr


def test_an_empty_list_says_what_to_do(tmp_path: Path) -> None:
    done = called("limits", "list", "--database", migrated_sqlite(tmp_path))
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("there are no limits in the namespace default: declare them in code, or use")

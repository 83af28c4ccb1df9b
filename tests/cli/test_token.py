"""`onetray token`: create, list and revoke, as a person and a script do it."""

from __future__ import annotations

from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told


def test_a_new_token_is_alone_on_the_output(place: Place) -> None:
    words = ("token", "create", "--name", "ci", "--scope", "submit,read", "--expires", "30d", "--namespace", "shop")
    done = called(*words, *place.at)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("ot_")
    assert done.stdout.count("\n") == 1
    [token] = place.engine.tokens.list()
    assert (token.name, token.namespace, token.scopes) == ("ci", "shop", ("read", "submit"))
    assert f"token {token.id} for ci in the namespace shop: read, submit; expires in 29 days" in done.stderr
    assert done.stdout.strip() not in done.stderr


def test_as_json_it_says_all_but_the_hash(place: Place) -> None:
    new = told("token", "create", "--name", "ci", "--scope", "work", *place.at)
    assert (new["name"], new["scopes"], new["expires_at"]) == ("ci", ["work"], None)
    assert new["token"].startswith(f"ot_{new['id']}_")
    listed = told("token", "list", *place.at)["tokens"]
    assert "hash" not in new
    assert [set(t) for t in listed] == [set(new) - {"token"}]


def test_tokens_are_listed_with_what_became_of_them(place: Place) -> None:
    ids = [told("token", "create", "--name", n, "--scope", "read", *place.at)["id"] for n in ("ann", "bob")]
    done = called("token", "revoke", ids[0], *place.at)
    assert (done.exit_code, done.stdout) == (0, f"token {ids[0]} (ann) is revoked\n")
    lines = called("token", "list", *place.at).stdout.splitlines()
    assert {line.split()[0]: line.split()[4] for line in lines[1:]} == {ids[0]: "revoked", ids[1]: "good"}
    assert told("token", "list", "--namespace", "other", *place.at)["tokens"] == []


def test_a_whole_token_may_be_given_to_revoke_it(place: Place) -> None:
    new = told("token", "create", "--name", "ann", "--scope", "read", *place.at)
    revoked = told("token", "revoke", new["token"], *place.at)
    assert revoked["revoked_at"] is not None


def test_what_cannot_be_is_told_in_one_line(place: Place) -> None:
    bad_scope = called("token", "create", "--name", "x", "--scope", "root", *place.at)
    assert (bad_scope.exit_code, one_line(bad_scope.stderr)) == (2, True)
    assert "use read, submit, work, operate, admin" in bad_scope.stderr
    absent = called("token", "revoke", "0123456789abcdef", *place.at)
    assert (absent.exit_code, one_line(absent.stderr)) == (4, True)
    assert called("token", "create", "--scope", "read", *place.at).exit_code == 2


def test_a_tokens_name_cannot_break_its_line(place: Place) -> None:
    done = called("token", "create", "--name", "a\nb", "--scope", "read", *place.at)
    assert done.exit_code == 2
    assert place.engine.tokens.list() == []

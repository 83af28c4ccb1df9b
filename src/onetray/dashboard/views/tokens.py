"""The tokens of a namespace, for administrators: list, create, revoke.

The text of a new token is in the answer to its form and nowhere else: not in a URL, not in a cookie, not in the log.
"""

from __future__ import annotations

from typing import Any

from onetray.dashboard.pages import Flash, Redraw, action, page
from onetray.dashboard.view import Form, Values, View
from onetray.domain.errors import InvalidInput, NotFound, OnetrayError
from onetray.domain.token import ADMIN, SCOPES, Token
from onetray.http import problems

DAY_S = 86_400
LIFETIMES = {"1": "1 day", "7": "7 days", "30": "30 days", "90": "90 days", "365": "1 year", "never": "never"}
"""When a new token expires: the days, and how they are called."""
DEFAULT_LIFETIME = "90"
ABOUT_SCOPES = {
    "read": "see jobs, queues and workers", "submit": "submit jobs", "work": "claim tasks and report on them",
    "operate": "approve, cancel, retry, pause", "admin": "everything, also tokens",
}  # fmt: skip


@page("/tokens", title="Tokens", nav=90, scope=ADMIN)
def tokens(view: View) -> dict[str, Any]:
    found = view.tokens.list(namespace=view.namespace)
    typed: Values | None = view.carried.get("typed")
    return {
        "tokens": [(token, validity(token, view.now)) for token in found], "is_first": not view.tokens.exist(),
        "new": view.carried.get("new"), "problem": view.carried.get("problem"), "typed": typed or Values(""),
        "lifetimes": LIFETIMES, "lifetime": (typed or Values("")).text("expires", DEFAULT_LIFETIME),
        "scopes": {scope: ABOUT_SCOPES[scope] for scope in SCOPES},
    }  # fmt: skip


def validity(token: Token, now: int) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "valid"


@action("/tokens", scope=ADMIN)
def create_token(view: View, form: Form) -> Redraw:
    groups = [group.strip() for group in form.text("groups").split(",") if group.strip()]
    try:
        new = view.tokens.create(
            form.text("name"), form.many("scopes"), namespace=view.namespace, expires_s=_lifetime_s(form),
            groups=groups, by=view.principal.name,
        )  # fmt: skip
    except OnetrayError as error:
        return Redraw("tokens", {"typed": form, "problem": problems.of_error(error)["detail"]}, error.status)
    return Redraw("tokens", {"new": new})


def _lifetime_s(form: Form) -> float | None:
    chosen = form.text("expires", DEFAULT_LIFETIME)
    if chosen not in LIFETIMES:
        raise InvalidInput(f"expires must be one of {', '.join(LIFETIMES)} days", field="expires")
    return None if chosen == "never" else float(chosen) * DAY_S


@action("/tokens/{id}/revoke", scope=ADMIN)
def revoke_token(view: View, form: Form) -> Flash:
    id_ = view.path["id"]
    found = view.tokens.get(id_)
    if found is None or found[0].namespace != view.namespace:
        raise NotFound(f"there is no token {id_[:50]} in this namespace", token=id_)
    view.tokens.revoke(id_, by=view.principal.name)
    return Flash(f"The token {found[0].name} is revoked. Servers refuse it within seconds.", view.link("tokens"))

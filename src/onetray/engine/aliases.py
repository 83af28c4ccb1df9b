"""Aliases: ids that callers choose for tasks, flows and contexts, beside the engine's own.

Owns who gets an alias when several want it: the first, for as long as its entity exists. Writes nothing for entities
without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onetray.domain.errors import AliasTaken
from onetray.store.base import Tx
from onetray.store.rows import AliasHolderRow


class NewAlias(NamedTuple):
    """An alias, and the new entity that is to have it."""

    ns: int
    alias: str
    entity: str
    key: int
    id: str


Groups = Mapping[int, Sequence[NewAlias]]
"""The aliases of each command, by its place: it gets all of them or none."""


def take_aliases(tx: Tx, groups: Groups) -> dict[int, AliasTaken]:
    """Give aliases to new entities, in the order of the commands. Returns the refusals."""
    refused: dict[int, AliasTaken] = {}
    new_ids = {new.key: new.id for group in groups.values() for new in group}
    while groups:
        first, later = _without_rivals(groups)
        refused |= _take(tx, first, new_ids)
        groups = later
    return refused


def require_aliases(tx: Tx, wanted: Sequence[NewAlias]) -> None:
    """Give aliases to the new entities of one command. Raises AliasTaken, and then none of them has one."""
    for refusal in take_aliases(tx, {0: wanted} if wanted else {}).values():
        raise refusal


def hand_on_aliases(tx: Tx, successors: Mapping[int, int]) -> None:
    """Let the successor of a task or a flow have its alias, if it has one. By key."""
    if successors:
        tx.batch("hand_on_aliases", {"key": [*successors], "successor": [*successors.values()]})


def _without_rivals(groups: Groups) -> tuple[Groups, Groups]:
    """The commands of which no earlier one wants the same alias, and the others."""
    first: dict[int, Sequence[NewAlias]] = {}
    later: dict[int, Sequence[NewAlias]] = {}
    seen: set[tuple[int, str]] = set()
    for i in sorted(groups):
        wanted = {new[:2] for new in groups[i]}
        (later if wanted & seen else first)[i] = groups[i]
        seen |= wanted
    return first, later


def _take(tx: Tx, groups: Groups, new_ids: Mapping[int, str]) -> dict[int, AliasTaken]:
    # Sorted, so that two batches cannot deadlock.
    wanted = sorted(new for group in groups.values() for new in group)
    holders: dict[tuple[int, str], AliasHolderRow] = {}
    while wanted:
        tx.batch("insert_aliases", _columns(wanted, "ns", "alias", "entity", "key"))
        holders |= {(row.ns, row.alias): row for row in tx.batch("alias_holders", _columns(wanted, "ns", "alias"))}
        # The holder of one may have been deleted between the two statements.
        wanted = [new for new in wanted if new[:2] not in holders]
    refused: dict[int, AliasTaken] = {}
    freed: list[NewAlias] = []
    for i, group in groups.items():
        taken = [new for new in group if holders[new[:2]].key != new.key]
        if taken:
            holder = holders[taken[0][:2]]
            refused[i] = _refusal(holder, holder.id or new_ids.get(holder.key))
            freed += [new for new in group if new not in taken]
    if freed:
        tx.batch("free_aliases", _columns(freed, "ns", "alias"))
    return refused


def _columns(rows: Sequence[NewAlias], *names: str) -> dict[str, list[Any]]:
    return {name: [getattr(row, name) for row in rows] for name in names}


def _refusal(holder: AliasHolderRow, id_: str | None) -> AliasTaken:
    return AliasTaken(
        f"the alias {holder.alias!r} belongs to the {holder.entity} {id_}: use another one",
        alias=holder.alias,
        entity=holder.entity,
        id=id_,
    )

"""All statements of one database, loaded once: those of store/sql, and one for each transition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from onetray.domain.lifecycle import MACHINES, TASK
from onetray.domain.machine import BadLifecycle, Machine, Transition
from onetray.store.move_sql import move_of, title
from onetray.store.sql_template import Statement, sections_of, statement_of


@dataclass(frozen=True, slots=True)
class Statements:
    dialect: str
    by_name: dict[str, Statement]
    moves: dict[str, Statement]

    def for_batch(self, name: str, columns: Mapping[str, Any]) -> Statement:
        """The statement for a batch with these columns: each is a list, or one value for all rows."""
        return statement_of(name, self.dialect, _once(columns))

    def move(self, hops: tuple[Transition, ...], columns: Mapping[str, Any], held: bool = False) -> Statement:
        return move_of(hops, self.dialect, _once(columns), held, "slots" in columns)


def _once(columns: Mapping[str, Any]) -> frozenset[str]:
    return frozenset([column for column, values in columns.items() if not isinstance(values, list)])


@cache
def statements_for(dialect: str) -> Statements:
    """Load the .sql files. Raises if a row type does not match its statement, or a transition has no statement."""
    statements = {name: statement_of(name, dialect) for name in sections_of("name")}
    moves = {names: move_of(tuple(map(_transition, names.split(", "))), dialect) for names in sections_of("move")}
    for machine in MACHINES.values():
        every_transition_has_a_statement(machine, moves)
    return Statements(dialect, statements, moves)


def every_transition_has_a_statement(machine: Machine, moves: Mapping[str, Statement]) -> None:
    for t in machine.transitions:
        if not t.creates and title(t) not in moves:
            raise BadLifecycle(f"{machine.entity}: {t.name!r} has no statement: add it to store/sql/move.sql")


def _transition(title: str) -> Transition:
    entity, _, name = title.rpartition(".")
    return MACHINES[entity or TASK.entity].by_name[name]

"""A plugin for mypy: `tx.query("claim_any", …)` gives a list of the row type that claim_any declares in its .sql file.

So the names of columns are checked wherever a row is read, and no call has to repeat the type. It costs nothing at run
time. Where the name of a statement is not written out, rows are Any: annotate them.
"""

import re
from collections.abc import Callable
from pathlib import Path

from mypy.nodes import MypyFile, StrExpr, TypeInfo
from mypy.plugin import MethodContext, Plugin, ReportConfigContext
from mypy.types import AnyType, Instance, Type, TypeOfAny

SQL = Path(__file__).resolve().parents[1] / "src/onetray/store/sql"
METHODS = ("query", "query_later", "batch", "read", "read_within", "_read")
READERS = ("cli", "engine", "explain", "feed", "http", "redaction", "testing")
MODULES = (
    "onetray.store.rows",
    "onetray.store.event_rows",
    "onetray.store.copied_rows",
    "onetray.store.limit_rows",
    "onetray.store.shown_rows",
)
_HEADER = re.compile(r"^-- name: (\w+)\n-- row: (\w+)$", re.MULTILINE)
DECLARED = {name: row for path in sorted(SQL.glob("*.sql")) for name, row in _HEADER.findall(path.read_text())}


class RowsPlugin(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        module, _, method = fullname.rpartition(".")
        return self._rows if method in METHODS and module.startswith("onetray.") else None

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        reads = any(file.fullname.startswith(f"onetray.{package}") for package in READERS)
        return [(10, module, -1) for module in MODULES] if reads else []

    def report_config_data(self, ctx: ReportConfigContext) -> object:
        # What was checked against other declarations is checked again.
        return DECLARED

    def _rows(self, ctx: MethodContext) -> Type:
        name = ctx.args[0][0] if ctx.args and ctx.args[0] else None
        declared = DECLARED.get(name.value) if isinstance(name, StrExpr) else None
        if declared is None:
            return ctx.default_return_type
        return ctx.api.named_generic_type("builtins.list", [self._row_type(declared)])

    def _row_type(self, name: str) -> Type:
        for module in MODULES:
            found = self.lookup_fully_qualified(f"{module}.{name}")
            if found is not None and found.node is not None:
                assert isinstance(found.node, TypeInfo)
                row, columns = Instance(found.node, []), found.node.tuple_type
                return row if columns is None else columns.copy_modified(fallback=row)
        return AnyType(TypeOfAny.special_form)


def plugin(version: str) -> type[Plugin]:
    return RowsPlugin

"""Tasks whose handler gets many of them at once: `@app.task(batch=100, batch_s=2.0)`.

    @app.task(batch=100, batch_s=2.0)
    def index(docs: list[Doc]) -> None: ...

Owns the signature of such a handler: one list, with an item for each task. worker/ gathers the tasks, and
worker/call_batch.py calls the handler.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from onetray.app.context import TaskContext
from onetray.app.signature import Signature, as_json_values
from onetray.domain.checks import seconds, whole
from onetray.domain.errors import InvalidInput, TaskError

T = TypeVar("T")

MAX_SIZE = 1_000
DEFAULT_WAIT_S = 1.0
_LISTS = (list, Sequence)
_NO_OBJECTS = (str, int, float, bool, bytes, list, tuple, set, type(None))


class BatchItem(Generic[T]):
    """One task of a batch: its payload, its `ctx`, and a way to let it fail alone."""

    __slots__ = ("ctx", "error", "payload")

    def __init__(self, payload: T, ctx: TaskContext) -> None:
        self.payload, self.ctx = payload, ctx
        self.error: BaseException | None = None
        """Why it failed, if the handler says so."""

    def fail(self, error: BaseException | str) -> None:
        """Let this task fail, whatever the handler returns. Its retry rules decide what follows."""
        self.error = error if isinstance(error, BaseException) else TaskError(error)

    def __repr__(self) -> str:
        return f"<item {self.ctx.kind} {self.ctx.id}>"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How many tasks one call gets, and how long the first of them waits for the others."""

    size: int
    wait_s: float


def batch_limits(kind: str, batch: object, batch_s: object) -> BatchLimits | None:
    """The rules `batch` and `batch_s` of a task; None if it has none."""
    if batch is None:
        if batch_s is not None:
            raise InvalidInput(f"{kind}: batch_s needs batch: say how many tasks a call gets at most", field="batch")
        return None
    whole(batch, "batch", 1, MAX_SIZE)
    seconds(DEFAULT_WAIT_S if batch_s is None else batch_s, "batch_s")
    return BatchLimits(batch, DEFAULT_WAIT_S if batch_s is None else batch_s)  # type: ignore[arg-type]


class BatchSignature(Signature):
    """The types of a handler's items and results: `(list[Item]) -> list[Result] | None`."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        super().__init__(function, name)
        if len(self.parameters) != 1:
            raise self._refusal()
        try:
            _ = self.item_type, self.result_type
        except InvalidInput as e:
            # A type that is not defined yet is checked when a worker starts.
            if not isinstance(e.__cause__, NameError):
                raise

    def _refusal(self) -> InvalidInput:
        return InvalidInput(
            f"{self.name}: the handler of a batch takes one argument, a list with an item for each task: "
            f"def {self.name}(items: list[Item]), where Item is a dataclass, a TypedDict, a pydantic model or a dict; "
            "or items: list[BatchItem[Item]]",
            field="batch",
        )

    @cached_property
    def _declared_item(self) -> Any:
        declared = self._hints.get(next(iter(self.parameters)), list[Any])
        if declared in _LISTS:
            return Any
        if get_origin(declared) not in _LISTS:
            raise self._refusal()
        return get_args(declared)[0]

    @property
    def has_contexts(self) -> bool:
        """Whether its items are of BatchItem: with the `ctx` of each."""
        return BatchItem in (self._declared_item, get_origin(self._declared_item))

    @cached_property
    def item_type(self) -> Any:
        """The type of a payload."""
        declared = self._declared_item
        if self.has_contexts:
            declared = (*get_args(declared), Any)[0]
        if declared in _NO_OBJECTS or get_origin(declared) in _NO_OBJECTS:
            raise self._refusal()
        return declared

    @cached_property
    def result_type(self) -> Any:
        """The type of one result: without the exceptions that a list of results may hold."""
        declared = _without(self._hints.get("return", Any), lambda kind: kind is type(None))
        if declared is Any or declared in _LISTS:
            return Any
        if get_origin(declared) not in _LISTS:
            raise InvalidInput(
                f"{self.name}: the handler of a batch returns a list with a result for each item, or None",
                field="batch",
            )
        return _without(get_args(declared)[0], lambda kind: isinstance(kind, type) and issubclass(kind, BaseException))

    def item(self, payload: Any) -> Any:
        """The payload of a task as an item of the list."""
        return self._checked({} if payload is None else payload, self._arguments)

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], incomplete: bool = False) -> dict[str, Any]:
        """Check one item, given as a value or by its fields, and return it as JSON values by name."""
        if args and (len(args) > 1 or kwargs):
            raise InvalidInput(f"{self.name}: pass one item, or its fields by name", field="payload")
        item = next(iter(args), dict(kwargs))
        values = as_json_values(self.name, self._checked(item, self._arguments), self._arguments)
        if not isinstance(values, dict):
            raise InvalidInput(f"{self.name}: an item must be an object with fields by name", field="payload")
        return values

    @property
    def _takes(self) -> str:
        return f"an item of {super()._takes}"

    @cached_property
    def _arguments(self) -> Any:
        return self._adapter(self.item_type)

    @cached_property
    def _many(self) -> Any:
        return self._adapter(list[self.item_type])  # type: ignore[name-defined]

    @cached_property
    def _plain(self) -> bool:
        return False

    @cached_property
    def _plain_types(self) -> dict[str, type] | None:
        return None

    @cached_property
    def _result(self) -> Any:
        return self._adapter(self.result_type)

    @cached_property
    def _plain_result(self) -> Any:
        return type(None) if self.result_type is Any else None


def _without(declared: Any, is_left_out: Callable[[Any], bool]) -> Any:
    """A type without some members of its union; Any if none is left."""
    is_union = get_origin(declared) in (Union, types.UnionType)
    kept = [kind for kind in (get_args(declared) if is_union else (declared,)) if not is_left_out(kind)]
    return Union[tuple(kept)] if kept else Any  # noqa: UP007

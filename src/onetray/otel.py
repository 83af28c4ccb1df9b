"""Spans of OpenTelemetry, where a program has set it up; nothing, where it has not.

Owns the only calls of it. Nothing here loads it: who wants spans has it loaded, and has said where they go.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from onetray.domain.checks import is_traceparent

NAME = "onetray"
_API = "opentelemetry.trace"
_UNSAFE = re.compile(r"[^\x20-\x7e]")


LOOK_S = 1.0
"""How long it counts that nobody wants spans: to ask costs as much as a short handler."""
_none_until = 0.0


def tracer() -> Any:
    """What makes spans; None when nobody would get them."""
    global _none_until
    api = sys.modules.get(_API)
    if api is None or monotonic() < _none_until:
        return None
    provider = api.get_tracer_provider()
    # The one that stands there before a program has set another up, and the one that says: none.
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        _none_until = monotonic() + LOOK_S
        return None
    return provider.get_tracer(NAME)


class Span:
    """A span that is open and current here, until it is closed."""

    __slots__ = ("_span", "_token")

    def __init__(self, maker: Any, name: str, kind: str, parent: str | None, facts: dict[str, Any]) -> None:
        api = sys.modules[_API]
        self._span = maker.start_span(
            _UNSAFE.sub("?", name)[:200], _context(parent), kind=api.SpanKind[kind], attributes=facts
        )
        self._token = _contexts().attach(api.set_span_in_context(self._span))

    @property
    def traceparent(self) -> str:
        """What others name it by."""
        return _text(self._span.get_span_context())

    def name(self, name: str) -> None:
        """Call it otherwise, now that more is known."""
        self._span.update_name(_UNSAFE.sub("?", name)[:200])

    def tell(self, **facts: Any) -> None:
        self._span.set_attributes({name.replace("__", "."): value for name, value in facts.items()})

    def failed(self, error: BaseException | str) -> None:
        """Its words, without the traceback: that is in the log, or with the task."""
        said = error if isinstance(error, str) else type(error).__name__
        self._span.set_status(sys.modules[_API].StatusCode.ERROR, said)

    def close(self) -> None:
        _contexts().detach(self._token)
        self._span.end()


def begin(name: str, kind: str, parent: str | None = None, **facts: Any) -> Span | None:
    """Open a span: under a traceparent, else under the one that is current here. None when nobody would get it."""
    maker = tracer()
    return None if maker is None else Span(maker, name, kind, parent, facts)


@contextmanager
def span_around(name: str, kind: str, parent: str | None = None, **facts: Any) -> Iterator[Span | None]:
    """The same for a block."""
    opened = begin(name, kind, parent, **facts)
    try:
        yield opened
    except BaseException as e:
        if opened is not None:
            opened.failed(e)
        raise
    finally:
        if opened is not None:
            opened.close()


def here() -> str | None:
    """The traceparent of the span that is current here; None when there is none."""
    if tracer() is None:
        return None
    context = sys.modules[_API].get_current_span().get_span_context()
    return _text(context) if context.is_valid else None


def _text(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _context(parent: str | None) -> Any:
    """The context of a traceparent; None takes the current one."""
    if parent is None or not is_traceparent(parent):
        return None
    api = sys.modules[_API]
    _, trace_id, span_id, flags = parent.split("-")
    above = api.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=api.TraceFlags(int(flags, 16))
    )
    return api.set_span_in_context(api.NonRecordingSpan(above))


def _contexts() -> Any:
    return sys.modules["opentelemetry.context"]

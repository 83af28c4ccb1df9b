"""OpenTelemetry spans, if the program has set up a tracer provider; otherwise nothing.

The only module that calls OpenTelemetry. It never imports it: a program that wants spans has done so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Any

from onetray.domain.checks import is_traceparent

NAME = "onetray"
_API = "opentelemetry.trace"
_UNSAFE = re.compile(r"[^\x20-\x7e]")


RECHECK_S = 1.0
"""How long to remember that no provider is set up: checking costs as much as a short handler."""
_disabled_until = 0.0


def tracer() -> Any:
    """The tracer; None if no provider is set up."""
    global _disabled_until
    api = sys.modules.get(_API)
    if api is None or monotonic() < _disabled_until:
        return None
    provider = api.get_tracer_provider()
    # The default before a program sets a provider, and the explicit one for no spans.
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        _disabled_until = monotonic() + RECHECK_S
        return None
    return provider.get_tracer(NAME)


class Span:
    """An open span, current in this context until it is closed."""

    __slots__ = ("_span", "_token")

    def __init__(self, tracer_: Any, name: str, kind: str, parent: str | None, attributes: dict[str, Any]) -> None:
        api = sys.modules[_API]
        self._span = tracer_.start_span(
            _UNSAFE.sub("?", name)[:200], _context(parent), kind=api.SpanKind[kind], attributes=attributes
        )
        self._token = _context_api().attach(api.set_span_in_context(self._span))

    @property
    def traceparent(self) -> str:
        """The W3C traceparent of this span, for its children."""
        return _text(self._span.get_span_context())

    def name(self, name: str) -> None:
        """Rename the span, once its route is known."""
        self._span.update_name(_UNSAFE.sub("?", name)[:200])

    def tell(self, **attributes: Any) -> None:
        self._span.set_attributes({name.replace("__", "."): value for name, value in attributes.items()})

    def failed(self, error: BaseException | str) -> None:
        """Mark the span as failed, without the traceback: the log or the task has that."""
        message = error if isinstance(error, str) else type(error).__name__
        self._span.set_status(sys.modules[_API].StatusCode.ERROR, message)

    def leave(self) -> None:
        """End its time as the current span. It stays open: many tasks may run in one call."""
        if self._token is not None:
            _context_api().detach(self._token)
            self._token = None

    def close(self) -> None:
        self.leave()
        self._span.end()


def begin(name: str, kind: str, parent: str | None = None, **attributes: Any) -> Span | None:
    """Open a span below a traceparent, else below the current span. Returns None if no provider is set up."""
    tracer_ = tracer()
    return None if tracer_ is None else Span(tracer_, name, kind, parent, attributes)


_NO_SPAN: nullcontext[None] = nullcontext()


def span_around(
    name: str, kind: str, parent: str | None = None, **attributes: Any
) -> AbstractContextManager[Span | None]:
    """`begin` for a `with` block, which fails the span if the block raises."""
    span = begin(name, kind, parent, **attributes)
    return _NO_SPAN if span is None else _closing(span)


@contextmanager
def _closing(span: Span) -> Iterator[Span]:
    try:
        yield span
    except BaseException as e:
        span.failed(e)
        raise
    finally:
        span.close()


def here() -> str | None:
    """The traceparent of the current span; None if there is none."""
    if tracer() is None:
        return None
    context = sys.modules[_API].get_current_span().get_span_context()
    return _text(context) if context.is_valid else None


def _text(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _context(parent: str | None) -> Any:
    """The context of a traceparent; None for the current context."""
    if parent is None or not is_traceparent(parent):
        return None
    api = sys.modules[_API]
    _, trace_id, span_id, flags = parent.split("-")
    parent_context = api.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=api.TraceFlags(int(flags, 16))
    )
    return api.set_span_in_context(api.NonRecordingSpan(parent_context))


def _context_api() -> Any:
    return sys.modules["opentelemetry.context"]

"""The page at /docs: the OpenAPI description as HTML.

Owns the layout. The page runs no script and loads nothing; everything on it is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

import orjson

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
nav a { margin-right: 1rem; white-space: nowrap; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .7rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; background: var(--soft); border-radius: 4px; }
code { padding: 0 .2em; overflow-wrap: anywhere; }
pre { padding: .6rem; overflow-x: auto; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid var(--line); padding: .2rem .6rem .2rem 0; text-align: left; vertical-align: top; }
.verb { display: inline-block; min-width: 3.5em; font-weight: bold; }
"""
_CODE = re.compile(r"`([^`]+)`")
REFS = {"schemas": "#/components/schemas/", "responses": "#/components/responses/"}


def rendered(spec: dict[str, Any]) -> str:
    """Render an OpenAPI description as one HTML page."""
    groups = _by_tag(spec)
    title = escape(f"{spec['info']['title']} {spec['info']['version']}")
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>',
            f"<h1>{title}</h1>{_prose(spec['info'].get('description', ''))}",
            f"<nav>{_links((*groups, 'schemas'))}</nav>",
            *(line for tag, operations in groups.items() for line in _group(tag, operations, spec)),
            '<h2 id="schemas">schemas</h2>',
            *(_schema(name, schema) for name, schema in sorted(spec["components"]["schemas"].items())),
            "</body></html>",
        ]
    )


def _links(tags: tuple[str, ...]) -> str:
    return " ".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in tags)


Operation = tuple[str, str, dict[str, Any]]


def _by_tag(spec: dict[str, Any]) -> dict[str, list[Operation]]:
    groups: dict[str, list[Operation]] = {}
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            groups.setdefault((operation.get("tags") or ["more"])[0], []).append((method, path, operation))
    return groups


def _group(tag: str, operations: list[Operation], spec: dict[str, Any]) -> Iterator[str]:
    yield f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>'
    for method, path, operation in operations:
        id_ = _anchor(operation["operationId"])
        yield (
            f'<details id="{id_}"><summary><span class="verb">{escape(method.upper())}'
            f"</span> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}</summary>"
        )
        yield _prose(operation.get("description", ""))
        yield _parameters(operation.get("parameters", []))
        if "requestBody" in operation:
            yield f"<h4>Body</h4>{_contents(operation['requestBody'])}"
        for status, answer in sorted(operation["responses"].items()):
            yield _answer(status, answer, spec)
        yield "</details>"


def _answer(status: str, answer: dict[str, Any], spec: dict[str, Any]) -> str:
    """A response with its example. Errors common to all operations are one line with their codes."""
    if "$ref" not in answer:
        return f"<h4>{escape(status)} {escape(answer['description'])}</h4>{_contents(answer)}"
    shared = spec["components"]["responses"][answer["$ref"].removeprefix(REFS["responses"])]
    codes = sorted(code for content in shared["content"].values() for code in content.get("examples", {}))
    code_list = ", ".join(f"<code>{escape(code)}</code>" for code in codes)
    return f"<p>{escape(status)} {escape(shared['description'])}: {code_list}</p>"


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = (
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{escape(p['in'])}"
        f"{' (required)' if p.get('required') else ''}</td><td>{_inline(p.get('description', ''))}</td></tr>"
        for p in parameters
    )
    return f"<h4>Parameters</h4><table>{''.join(rows)}</table>"


def _contents(holder: dict[str, Any]) -> str:
    return "".join(_content(media, content) for media, content in holder.get("content", {}).items())


def _content(media: str, content: dict[str, Any]) -> str:
    schema = content.get("schema", {})
    refs = [s["$ref"] for s in (schema, *schema.get("oneOf", []), *schema.get("anyOf", [])) if "$ref" in s]
    names = [ref.removeprefix(REFS["schemas"]) for ref in refs]
    links = " or ".join(f'<a href="#schema-{_anchor(n)}">{escape(n)}</a>' for n in names)
    examples = [e["value"] for e in content.get("examples", {}).values()]
    examples += [content["example"]] if "example" in content else []
    return f"<p><code>{escape(media)}</code> {links}</p>" + "".join(_example(e) for e in examples)


def _schema(name: str, schema: dict[str, Any]) -> str:
    return (
        f'<details id="schema-{_anchor(name)}"><summary><code>{escape(name)}</code> '
        f"{_inline(schema.get('description', ''))}</summary>{_example(schema)}</details>"
    )


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return f"<pre>{escape(text)}</pre>"


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in text.strip().split("\n\n") if part)


def _inline(text: str) -> str:
    # Escaped first: the text between backquotes may be anything.
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _anchor(name: str) -> str:
    return re.sub(r"[^\w-]", "-", name)

"""Forms: what somebody who approves a stage is asked for, as a JSON Schema.

Owns the checks of a schema and of an input against it. Never fetches what a schema refers to.
"""

from __future__ import annotations

from typing import Any

from onetray.errors import InvalidInput


def check_form(form: object) -> None:
    """Refuse what is not a JSON Schema."""
    # Loaded here: most commands need no form, and it is slow to import.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(form, dict):
        raise InvalidInput("approval.form must be a JSON Schema, a dict", field="approval.form")
    try:
        Draft202012Validator.check_schema(form)
    except SchemaError as e:
        raise InvalidInput(f"approval.form is not a JSON Schema: {e.message}"[:300], field="approval.form") from None


def fill_in(form: dict[str, Any], answer: object) -> None:
    """Refuse an input that the form does not allow, and say where."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # With a registry of its own nothing is looked up outside of the schema.
    validator = Draft202012Validator(form, registry=Registry())
    try:
        wrong = best_match(validator.iter_errors(answer))
    except Unresolvable as e:
        raise InvalidInput(f"the form refers to something outside of it: {e}"[:300], field="approval.form") from None
    except RecursionError:
        raise InvalidInput("the form refers to itself without an end", field="approval.form") from None
    if wrong is not None:
        at = "/".join(map(str, wrong.absolute_path))
        raise InvalidInput(f"input{'/' + at if at else ''}: {wrong.message}"[:300], field="input")

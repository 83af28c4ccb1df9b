"""Find an app by its path: `package.module:name`.

Owns the errors of a path that does not lead to one: each says what to write.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from onetray.errors import InvalidInput

if TYPE_CHECKING:
    from onetray.app import Onetray


def locate(path: str) -> Onetray:
    """The app at a path. The working directory is looked in first, as by `python -m`."""
    from onetray.app import Onetray

    module_name, _, name = path.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidInput(f"{path!r} is no path to an app: write module:app", field="app")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is not None and (module_name == e.name or module_name.startswith(f"{e.name}.")):
            raise InvalidInput(f"there is no module {module_name!r} here or on PYTHONPATH", field="app") from e
        raise
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, Onetray):
            raise InvalidInput(f"{module_name} has no Onetray named {name!r}: write module:app", field="app")
        return found
    apps = [value for value in vars(module).values() if isinstance(value, Onetray)]
    if len(apps) != 1:
        raise InvalidInput(f"{module_name} has {len(apps)} apps: write {module_name}:name", field="app")
    return apps[0]

"""Load an app by its path (`package.module:name`), import the modules of its tasks, and run its lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onetray.domain.errors import InvalidInput

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray

NOT_USERS = (
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
    os.path.dirname(importlib.__file__), "<frozen importlib",
)  # fmt: skip
"""How the file names of onetray and of importlib begin."""


def load_app(path: str) -> Onetray:
    """Import the app at a path, and the modules that it includes. Like `python -m`, this searches the working
    directory first.

    Without a name, the app is the only one in the module. If the module is a package without an app, all its modules
    are searched. Whatever its code raises is an InvalidInput, with the frames of that code as its fact `traceback`.
    """
    try:
        return _load_app(path)
    except Exception as e:
        if not (frames := user_frames(e)):
            raise
        text = f"the app {path} cannot be imported: {type(e).__name__}: {e}. {_remedy(e)}"
        raise InvalidInput(text, field="app", traceback=frames) from e


def user_frames(error: Exception) -> str:
    """Where the user's code raised an error, as a traceback shows it, without frames of importlib and onetray."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(NOT_USERS)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        return "".join(traceback.format_exception_only(error)[:-1])
    return "".join(traceback.format_list(frames))


def _remedy(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"Install {error.name}, or run onetray in the environment of the app"
    return "Correct it, or name another app: --app module:app"


def _load_app(path: str) -> Onetray:
    module_name, _, name = path.partition(":")
    if not is_module_name(module_name):
        raise InvalidInput(f"{path!r} is not a path to an app: write module:app", field="app")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    module = import_module(module_name, "here or on PYTHONPATH", "app")
    app = _named_app(module, name) if name else _only_app(module)
    app.load_included()
    return app


def _named_app(module: ModuleType, name: str) -> Onetray:
    apps = {path.partition(":")[2]: app for app, path in _apps_in([module]).items()}
    app = getattr(module, name, None)
    if app is None or app not in apps.values():
        known = f"it has {', '.join(sorted(apps))}" if apps else "write module:app"
        raise InvalidInput(f"{module.__name__} has no Onetray named {name!r}: {known}", field="app")
    found: Onetray = app
    return found


def _only_app(module: ModuleType) -> Onetray:
    name = module.__name__
    apps = _apps_in([module]) or _apps_in(import_all(module))
    if not apps:
        raise InvalidInput(f"{name} has no app: create one, app = Onetray(…), or write module:app", field="app")
    if len(apps) > 1:
        paths = ", ".join(sorted(apps.values()))
        raise InvalidInput(f"{name} has {len(apps)} apps: write one of {paths}", field="app")
    return next(iter(apps))


def _apps_in(modules: Iterable[ModuleType]) -> dict[Onetray, str]:
    """The apps in these modules, each with its first path: other modules import it from there."""
    from onetray.app.onetray import Onetray

    found: dict[Onetray, str] = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, Onetray):
                found.setdefault(value, f"{module.__name__}:{name}")
    return found


def is_module_name(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def import_module(name: str, where: str, field: str) -> ModuleType:
    """Import a module. Raises InvalidInput if there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
            raise InvalidInput(f"there is no module {name!r} {where}", field=field) from e
        raise


def import_all(module: ModuleType) -> Iterator[ModuleType]:
    """A module, and if it is a package, all modules in it, imported. Not `__main__`: that would run a program."""
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if info.name != "__main__":
            yield from import_all(importlib.import_module(f"{module.__name__}.{info.name}"))


def include(app: Onetray, name: str) -> None:
    """Import a module, or all modules of a package, that declare tasks or flows of an app."""
    modules = list(import_all(import_module(name, "to include: see app.include", "include")))
    names = {module.__name__ for module in modules}
    declared = {task.function.__module__ for task in app.tasks.values()}
    others = [path for other, path in _apps_in(modules).items() if other is not app]
    if others and not names & declared:
        # As if the tasks did not exist: nothing else would say why.
        raise InvalidInput(
            f"{name} declares its tasks on another app, {others[0]}, than the one that includes it. If the program is "
            "the module of the app, that module is imported twice: create the app in a module of its own",
            field="include",
        )


class Lifespan:
    """Runs the app's lifespan, a generator function (async or not), in its own asyncio task. None does nothing."""

    def __init__(self, function: Callable[[], Any] | None) -> None:
        self._function = function
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    async def begin(self) -> Any:
        """Enter the lifespan, and return what it yields."""
        if self._function is None:
            return None
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(entered))
        done, _ = await asyncio.wait({entered, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if entered in done:
            return entered.result()
        # It has ended before it yielded. If it raised, raise that here.
        self._task.result()
        raise RuntimeError("the lifespan did not yield")

    async def _run(self, entered: asyncio.Future[Any]) -> None:
        assert self._function is not None
        async with contextlib.AsyncExitStack() as stack:
            if inspect.isasyncgenfunction(self._function):
                entered.set_result(await stack.enter_async_context(contextlib.asynccontextmanager(self._function)()))
            else:
                entered.set_result(stack.enter_context(contextlib.contextmanager(self._function)()))
            await self._ending.wait()

    async def end(self) -> None:
        """Leave the lifespan."""
        self._ending.set()
        if self._task is not None:
            await self._task

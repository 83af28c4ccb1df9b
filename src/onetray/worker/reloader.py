"""`onetray worker --reload`: restart the worker when the source of its app has changed. For development.

Watches the files of the modules that this process has imported from the working directory, by their times: it needs no
other package. A restart is a graceful stop, followed by the same command in the same process (exec).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from onetray.domain.errors import InvalidInput
from onetray.log_format import log_facts

logger = logging.getLogger("onetray.worker")

POLL_S = 0.5
SETTLE_S = 0.1
"""How long a file must stay the same after a change: an editor may still be writing it."""

Stamp = tuple[int, int] | None
"""The time and size of a file; None if it is missing."""


def imported_files() -> set[Path]:
    """The source files below the working directory, without those of packages installed there."""
    return _ours(getattr(module, "__file__", None) for module in list(sys.modules.values()))


def files_of(error: BaseException) -> set[Path]:
    """The source files that an error comes from: a module that cannot be imported is in no list of modules."""
    raised = error.__cause__ or error
    frames = [frame.filename for frame in traceback.extract_tb(raised.__traceback__)]
    return _ours([*frames, raised.filename if isinstance(raised, SyntaxError) else None])


def _ours(files: Iterable[str | None]) -> set[Path]:
    here = Path.cwd()
    found = {Path(file).absolute() for file in files if file and file.endswith(".py")}
    return {
        path
        for path in found
        if path.is_relative_to(here)
        and not any(part.startswith(".") or part == "site-packages" for part in path.relative_to(here).parts)
    }


class Reloader:
    """Watches in a thread, and calls a function once, when a file has changed."""

    def __init__(self, on_change: Callable[[], None] = lambda: None, more: Iterable[Path] = ()) -> None:
        self._on_change, self._more = on_change, set(more)
        self._stamps: dict[Path, Stamp] = {}
        self.has_changed = False
        self.is_cancelled = False
        """Whether a signal has requested a stop: then the worker does not start again."""
        self._stopping = threading.Event()
        self.add_new()

    def start(self) -> None:
        threading.Thread(target=self.watch, name="onetray-reloader", daemon=True).start()

    def watch(self) -> None:
        """Wait for a change."""
        while not self._stopping.wait(POLL_S):
            changed = self.changed()
            if changed and not any(map(self._is_broken, changed)):
                logger.info("changed: %s; the worker restarts", ", ".join(os.path.relpath(path) for path in changed))
                _remove_bytecode(changed)
                self.has_changed = True
                self._on_change()
                return

    def add_new(self) -> None:
        """Also watch what was imported since."""
        for path in imported_files() | self._more:
            if path not in self._stamps:
                self._stamps[path] = _stamp(path)

    def changed(self) -> list[Path]:
        """The files that have changed, once they stay the same. A missing one may be about to be replaced."""
        self.add_new()
        now = {path: _stamp(path) for path in self._stamps}
        different = sorted(path for path, stamp in now.items() if stamp not in (None, self._stamps[path]))
        if not different:
            return []
        self._stopping.wait(SETTLE_S)
        return different if all(_stamp(path) == now[path] for path in different) else []

    def _is_broken(self, path: Path) -> bool:
        """Whether a file cannot be compiled. Then the worker goes on with the code that it has."""
        try:
            compile(path.read_bytes(), path, "exec")
        except (SyntaxError, ValueError) as e:
            logger.error("%s cannot be compiled: %s; the worker goes on without the change", os.path.relpath(path), e)
            self._stamps[path] = _stamp(path)
            return True
        except OSError:
            return True
        return False


def _stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _remove_bytecode(sources: Iterable[Path]) -> None:
    """Python would run the bytecode of a source that has changed twice in a second and kept its size."""
    for path in sources:
        with suppress(OSError):
            os.unlink(cache_from_source(path))


def restart() -> None:
    """Run this command again, in this process."""
    logging.shutdown()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "onetray", *sys.argv[1:]])


def wait_for_fix(error: InvalidInput) -> None:
    """Log why the app cannot be loaded, and restart when one of its files has changed."""
    reloader = Reloader(more=files_of(error))
    frames = {name: value for name, value in error.facts.items() if name == "traceback"}
    log_facts(logger, logging.ERROR, f"{error}; the worker starts when a file has changed", frames)
    reloader.watch()
    restart()

"""Run `onetray` as a user does: in its own process, through the installed script."""

import os
import subprocess
import sys
from pathlib import Path

ONETRAY = str(Path(sys.executable).with_name("onetray"))


def onetray(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("ONETRAY_DATABASE", "NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return subprocess.run(
        [ONETRAY, *arguments], cwd=cwd, env=env | environment, capture_output=True, text=True, timeout=120, check=False
    )


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("onetray: ")

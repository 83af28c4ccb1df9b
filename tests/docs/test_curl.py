"""The README's way over HTTP: its commands are typed, and what they print is compared."""

import shutil
import socket
from pathlib import Path

from tests.docs.reader import BLOCK, FILE, reading
from tests.support.fleet import wait_until

ROOT = Path(__file__).resolve().parents[2]
PORT = "8321"


def test_the_readmes_requests_are_answered_as_it_says(tmp_path: Path) -> None:
    assert shutil.which("curl"), "the README speaks of curl"
    page = (ROOT / "README.md").read_text()
    section = page.split("\n## Over HTTP\n")[1].split("\n## ")[0]
    shop = next(block for _, block in BLOCK.findall(page) if FILE.match(block))
    port = _free_port()
    with reading(tmp_path) as reader:
        reader.do("python", shop)
        for language, block in BLOCK.findall(section):
            reader.do(language, block.replace("up --app", f"up --port {port} --app").replace(f":{PORT}/", f":{port}/"))
            if "onetray up" in block:
                wait_until(lambda: _is_there(port), 30)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _is_there(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0

"""The program as a whole: start-up, help, exit codes, pipes."""

import os
import shlex
import subprocess
import sys

import click
import pytest

import onetray as package
from onetray.cli import COMMANDS, SUMMARIES, main, summary_of
from tests.cli.run import ONETRAY, called, every_command, one_line, onetray

HEAVY = (
    "apsw", "jsonschema", "orjson", "psycopg", "psycopg_pool", "pydantic", "rich", "uuid_utils", "onetray.engine",
    "onetray.store",
)  # fmt: skip


def loaded_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import onetray", "import onetray.cli"])
def test_importing_loads_neither_the_engine_nor_a_driver(code: str) -> None:
    assert not loaded_after(code).intersection(HEAVY)


def test_help_of_every_command_loads_neither_the_engine_nor_a_driver() -> None:
    code = "from onetray.cli import main\n"
    for words in ([], *every_command()):
        code += f"try: main({[*words, '--help']})\nexcept SystemExit: pass\n"
    assert not loaded_after(code).intersection(HEAVY)


def test_the_help_says_of_each_command_what_the_command_says_of_itself() -> None:
    for name, said in SUMMARIES.items():
        assert said == summary_of(main, click.Context(main), name)


def test_every_public_name_is_there() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = package.Nope


def test_every_error_class_is_public() -> None:
    from onetray.domain import errors

    classes = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert classes <= set(package.__all__)


def test_the_version_is_the_packages() -> None:
    done = onetray("--version")
    assert (done.returncode, done.stdout) == (0, f"onetray {package.__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command_and_the_exit_codes(flag: str) -> None:
    done = onetray(flag)
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert "Exit codes:" in done.stdout


def test_without_a_command_the_help_goes_to_stderr() -> None:
    done = onetray()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["nope"], ["lifecycle", "--nope"], ["lifecycle", "a", "b"], ["verify", "--database", "mysql://x/y"]],
)
def test_bad_usage_is_one_line_on_stderr(words: list[str]) -> None:
    done = onetray(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr), done.stderr
    assert "--help" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("wroker", "No such command 'wroker'. Did you mean 'worker' or 'workers'? Try 'onetray --help'"),
        ("job", "No such command 'job'. Did you mean 'jobs'? Try 'onetray --help'"),
        ("xyzzy", "No such command 'xyzzy'. Try 'onetray --help'"),
        ("jobs lst", "? Try 'onetray jobs --help'"),
    ],
)
def test_a_wrong_command_names_the_nearest(words: str, says: str) -> None:
    done = called(*words.split())
    assert (done.exit_code, done.stderr.endswith(f"{says}\n")) == (2, True), done.stderr


@pytest.mark.parametrize("words", [["lifecycle"], ["--help"], ["lifecycle", "--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_causes_no_noise(words: list[str], unbuffered: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [ONETRAY, *words],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_head_gets_its_line() -> None:
    done = subprocess.run(
        f"{shlex.quote(ONETRAY)} lifecycle | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("transition ")
    assert done.stderr == ""


def test_an_interrupt_is_one_line() -> None:
    code = "from onetray.cli import main\nimport onetray.cli.lifecycle as it\n"
    code += "def stop(*_): raise KeyboardInterrupt\nit._machine = stop\nmain(['lifecycle'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 130
    assert done.stderr.strip() == "onetray: interrupted"


def test_a_missing_driver_names_the_extra() -> None:
    blocked = "import sys; sys.modules['psycopg'] = None\n"
    command = "from onetray.cli import main; main(['verify', '--database', 'postgresql://localhost/x'])"
    done = subprocess.run([sys.executable, "-c", blocked + command], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert one_line(done.stderr)
    assert "pip install 'onetray[postgres]'" in done.stderr
    library = (
        "import onetray\n"
        "try: onetray.Engine.open('postgresql://localhost/x')\n"
        "except onetray.MissingExtra as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", blocked + library], capture_output=True, text=True, check=True)
    assert "pip install 'onetray[postgres]'" in done.stdout

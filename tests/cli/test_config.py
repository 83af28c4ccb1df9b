"""`onetray config`: settings, and where they come from."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from onetray.config import EngineConfig, HttpConfig, Limits
from onetray.domain.errors import InvalidInput
from onetray.settings import Settings, load
from tests.cli.run import called, one_line, told


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, and no settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("ONETRAY_DATABASE", "ONETRAY_NAMESPACE", "ONETRAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(here: Path, text: str) -> None:
    (here / "onetray.toml").write_text(text)


def test_without_any_source_the_defaults_count() -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert {s.source for s in loaded.origins} == {"default"}


def test_every_field_is_a_setting() -> None:
    names = {f.name for f in fields(Settings)} - {"engine", "http"}
    names |= {f"http.{f.name}" for f in fields(HttpConfig)}
    names |= {f"engine.{f.name}" for f in fields(EngineConfig)} - {"engine.limits"}
    assert {s.name for s in load().origins} == names | {f"limits.{f.name}" for f in fields(Limits)}


def test_an_argument_beats_the_environment_beats_the_file_beats_the_default(here: Path) -> None:
    write(here, 'database = "sqlite:///file.db"\nnamespace = "file"\nconcurrency = 3\n[engine]\nchunk = 7')
    environment = {"ONETRAY_DATABASE": "sqlite:///env.db", "ONETRAY_NAMESPACE": "env", "ONETRAY_LIMITS_BATCH": "9"}
    settings = load({"database": "sqlite:///arg.db", "namespace": None}, environment).settings
    assert (settings.database, settings.namespace, settings.concurrency) == ("sqlite:///arg.db", "env", 3)
    assert (settings.engine.chunk, settings.engine.limits.batch, settings.drain_s) == (7, 9, 30.0)


def test_the_servers_settings_have_a_section_of_their_own(here: Path) -> None:
    write(here, '[http]\nport = 9000\ndialects = ["none"]')
    http = load({"http.host": "::1"}, {"ONETRAY_HTTP_GRACE_S": "3"}).settings.http
    assert (http.host, http.port, http.dialects, http.grace_s) == ("::1", 9000, ("none",), 3.0)
    with pytest.raises(InvalidInput, match="one of auto, json, text"):
        load({"http.log_format": "xml"})


def test_each_value_is_printed_with_its_source(here: Path) -> None:
    write(here, 'queues = ["mail", "slow"]\ndatabase = "postgresql://ann:secret@host/jobs"')
    shown = told("config", ONETRAY_DRAIN_S="5")
    assert shown["queues"] == {"value": ["mail", "slow"], "source": "file onetray.toml"}
    assert shown["drain_s"] == {"value": 5.0, "source": "environment ONETRAY_DRAIN_S"}
    assert shown["database"]["value"] == "postgresql://ann@host/jobs"
    text = called("config", "--namespace", "mine").stdout
    assert 'namespace = "mine"  # argument\n' in text
    assert "secret" not in text
    assert "its password is left out" in text
    assert "ann:secret@" in called("config", "--show-password").stdout


STRANGE = """
database = "postgresql://ann@host/jobs"
namespace = "a \\"quoted\\" näme # $HOME \\u007f"
queues = ["mail", "slow ones"]
drain_s = 0.5
[engine]
pooler = true
committers = 2
[http]
allowed_hosts = ["jobs.example.org"]
"""


def test_what_is_printed_can_be_pasted_into_the_file(here: Path) -> None:
    write(here, STRANGE)
    before = load().settings
    printed = called("config").stdout
    assert tomllib.loads(printed)["engine"]["committers"] == 2
    write(here, printed)
    assert load().settings == before
    write(here, called("config", ONETRAY_CONFIG="").stdout)
    assert load().settings == before


def test_what_is_printed_can_be_read_by_a_shell(here: Path) -> None:
    write(here, STRANGE)
    before = load().settings
    (here / "settings.sh").write_text(called("config", "--env").stdout)
    (here / "onetray.toml").unlink()
    script = f"set -a; . ./settings.sh; {sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert load(environment=json.loads(done.stdout)).settings == before


def test_the_defaults_can_be_pasted_too(here: Path) -> None:
    write(here, called("config").stdout)
    assert load().settings == Settings()


def test_a_name_with_a_comma_is_no_environment_variable(here: Path) -> None:
    write(here, 'queues = ["a,b"]')
    assert "ONETRAY_QUEUES cannot have a name with a comma" in called("config", "--env").stdout


def test_the_app_may_say_the_database_and_the_namespace(here: Path) -> None:
    (here / "shop_of_config.py").write_text(
        'from onetray import Onetray\napp = Onetray("sqlite:///s.db", namespace="eu")'
    )
    text = called("config", "--app", "shop_of_config").stdout
    assert 'database = "sqlite:///s.db"  # app shop_of_config\n' in text
    assert 'namespace = "eu"  # app shop_of_config\n' in text
    assert 'app = "shop_of_config"  # argument\n' in text
    assert tomllib.loads(called("config", "--app", "nowhere").stdout)["database"] == "sqlite:///onetray.db"


def test_a_file_elsewhere_is_named_by_a_variable(here: Path) -> None:
    (here / "other.toml").write_text('log_level = "debug"')
    assert load(environment={"ONETRAY_CONFIG": "other.toml"}).settings.log_level == "debug"
    with pytest.raises(InvalidInput, match="does not exist"):
        load(environment={"ONETRAY_CONFIG": "absent.toml"})


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ('databse = "x"', "did you mean 'database'"),
        ("[engine]\nchunks = 3", "did you mean 'engine.chunk'"),
        ("[limits]\nbacth = 3", "did you mean 'limits.batch'"),
        ("chunk = 3", "did you mean 'engine.chunk'"),
        ("zzzzzz = 3", "the settings are: database, app"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(here: Path, text: str, nearest: str) -> None:
    write(here, text)
    done = called("config")
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert nearest in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "concurrency = 0",
        'concurrency = "3"',
        "concurrency = true",
        "drain_s = -1",
        "drain_s = nan",
        'log_level = "loud"',
        'queues = "mail"',
        "queues = []",
        "queues = [1]",
        'namespace = ""',
        "[engine]\npooler = 1",
        "[limits]\nbatch = 0",
        "engine = 3",
        "not toml",
        'app = "\\u0000"',
        "retention = 30",
        'retention = "30"',
        'retention = "0d"',
        'retention = "soon"',
    ],
)
def test_a_wrong_value_is_refused_by_its_name(here: Path, text: str) -> None:
    write(here, text)
    with pytest.raises(InvalidInput, match=r"onetray\.toml"):
        load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONCURRENCY", "many"),
        ("ENGINE_POOLER", "maybe"),
        ("QUEUES", "a,,b"),
        ("DRAIN_S", "inf"),
        ("RETENTION", "30"),
        ("RETENTION", "-1d"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=f"ONETRAY_{name}"):
        load(environment={f"ONETRAY_{name}": value})


@pytest.mark.parametrize(("text", "seconds"), [("off", None), ("90s", 90), ("12h", 43_200), ("30d", 2_592_000)])
def test_the_retention_is_a_length_of_time_or_off(text: str, seconds: float | None) -> None:
    assert load(environment={"ONETRAY_RETENTION": text}).settings.retention_s == seconds


def test_everything_is_kept_unless_a_retention_is_set() -> None:
    assert load().settings.retention_s is None


@pytest.mark.parametrize(("word", "value"), [("true", True), ("0", False), ("Off", False)])
def test_a_flag_is_read_from_a_word(word: str, value: bool) -> None:
    assert load(environment={"ONETRAY_ENGINE_POOLER": word}).settings.engine.pooler is value

"""`onetray lifecycle`: the declared table, in each of its forms."""

import json
import os
import pty
import subprocess

import pytest
from click.testing import CliRunner

from onetray.cli import main
from onetray.domain.lifecycle import TASK
from tests.cli.run import ONETRAY, onetray


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["lifecycle", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_text_names_every_transition_with_its_event() -> None:
    lines = printed().splitlines()
    for t in TASK.transitions:
        (line,) = [x for x in lines if x.split()[:1] == [t.name]]
        assert t.event in line
        assert t.target in line
        assert ("yes" in line) == t.fenced


def test_the_text_names_every_open_states_way_out() -> None:
    text = printed("task")
    for state in TASK.open_states:
        assert TASK.ways_out[state].note in text


def test_json_holds_the_whole_table() -> None:
    told = json.loads(printed("task", "--json"))
    assert [s["name"] for s in told["states"]] == list(TASK.states)
    assert [s["name"] for s in told["states"] if s["way_out"] is None] == [s for s in TASK.states if s in TASK.terminal]
    for t, row in zip(TASK.transitions, told["transitions"], strict=True):
        assert row == {
            "name": t.name,
            "from": list(t.sources),
            "to": t.target,
            "by": row["by"],
            "fenced": t.fenced,
            "reopens": t.reopens,
            "implies": t.implies,
            "event": t.event,
        }
        assert set(row["by"]) == t.by


def test_the_diagram_has_an_arrow_for_every_pair_and_no_other() -> None:
    lines = printed("--mermaid").splitlines()
    assert lines[0] == "stateDiagram-v2"
    arrows = {tuple(line.split(":")[0].split(" --> ")) for line in (x.strip() for x in lines[1:])}
    pairs = {(a or "[*]", b) for a, b in TASK.pairs} | {(s, "[*]") for s in TASK.terminal}
    assert arrows == pairs


def test_the_diagram_is_labelled_with_the_verbs() -> None:
    assert "    running --> queued: retry, release, expire\n" in printed("--mermaid")


def test_the_markdown_has_a_row_for_every_transition() -> None:
    rows = [x for x in printed("--table").splitlines() if x.startswith("|")]
    assert [r.split(" | ")[0].removeprefix("| ") for r in rows[2 : 2 + len(TASK.transitions)]] == [
        t.name for t in TASK.transitions
    ]


def test_an_unknown_entity_is_refused_with_the_known_ones() -> None:
    done = CliRunner().invoke(main, ["lifecycle", "parcel"])
    assert done.exit_code == 2
    assert "known: task" in done.stderr


def test_two_forms_at_once_are_refused() -> None:
    done = CliRunner().invoke(main, ["lifecycle", "--json", "--mermaid"])
    assert done.exit_code == 2
    assert "exclude each other" in done.stderr


def test_a_pipe_gets_whole_lines_without_colour() -> None:
    text = onetray("lifecycle").stdout
    assert "\x1b" not in text
    assert "queued, assigned, running, blocked, waiting_input" in text


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_bold_headings_unless_no_color_is_set(no_color: str, coloured: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": no_color, "COLUMNS": "200"}
    program = subprocess.Popen([ONETRAY, "lifecycle"], stdout=theirs, env=environment)
    os.close(theirs)
    text = _read_all(ours).decode()
    assert program.wait(60) == 0
    assert ("\x1b[" in text) == coloured, text[:200]


def _read_all(descriptor: int) -> bytes:
    read = b""
    while True:
        try:
            more = os.read(descriptor, 65536)
        except OSError:  # Linux says EIO when the program has closed the terminal.
            more = b""
        if not more:
            os.close(descriptor)
            return read
        read += more

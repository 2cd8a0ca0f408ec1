# SPDX-License-Identifier: Apache-2.0
"""If a result cannot be written, stderr shows what changed, with a separate status and code.

Tables: the same columns everywhere; on a terminal colours, and free text cut where it is too narrow.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.conftest import child, child_environment
from vgpuctl.cli.output import Look, render, text_width
from vgpuctl.cli.shown import Pairs, Table

SIM = ("--host", "sim:mixed")


def lost(line: str, how: str) -> subprocess.CompletedProcess[str]:
    """Run a line with a full stdout, or one whose reader is gone."""
    command = [sys.executable, "-m", "vgpuctl", *SIM, *shlex.split(line)]
    options = {"env": child_environment(), "stderr": subprocess.PIPE, "text": True, "check": False, "timeout": 60}
    if how == "full":
        with open("/dev/full", "w", encoding="utf-8") as full:
            return subprocess.run(command, stdout=full, **options)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(command, stdout=writer, **options)
    finally:
        os.close(writer)


@pytest.mark.parametrize("how", ["full", "gone"])
@pytest.mark.parametrize("more", ["", "--json"])
def test_a_created_vm_is_shown(how: str, more: str) -> None:
    ran = lost(f"create-vm vdi-1 --profile A100-4C {more}", how)
    why = {"full": "No space left on device", "gone": "Broken pipe"}[how]
    assert ran.returncode == 5
    assert f"vgpuctl: create-vm is done, and its result could not be written: {why}   [output-lost]\n" in ran.stderr
    assert "  vdi-1: running\n" in ran.stderr
    assert "  hint: vgpuctl show-vm vdi-1 shows the result\n" in ran.stderr
    assert child(*SIM, "show-vm", "vdi-1").returncode == 0


@pytest.mark.parametrize(
    ("line", "observed"),
    [
        ("create-vm 'vdi-{}' --profile A100-4C --count 2", "vgpuctl list-vms"),
        ("create-vgpu lab --profile A100-4C", "vgpuctl list-vgpus"),
        ("cordon A100", "vgpuctl show-gpu 0000:3b:00.0"),
        ("cordon A16 --all", "vgpuctl list-gpus"),
        ("apply --set gpus[A100].cordoned=true", "vgpuctl diff"),
        ("install-host", "vgpuctl doctor"),
    ],
)
def test_every_change_names_the_command_that_shows_it(line: str, observed: str) -> None:
    for more in ("", " --json"):
        ran = lost(line + more, "full")
        if not more:
            assert (ran.returncode, "[output-lost]" in ran.stderr) == (5, True)
            assert f"hint: {observed} shows the result\n" in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("line", ["list-gpus", "create-vm vdi-1 --profile A100-4C --dry-run", "diff", "export"])
@pytest.mark.parametrize("more", ["", "--json"])
def test_without_a_change_only_a_full_disk_is_reported(line: str, more: str) -> None:
    full = lost(f"{line} {more}", "full")
    assert full.returncode == 1
    assert full.stderr.splitlines()[-1].endswith("No space left on device   [output]")
    gone = lost(f"{line} {more}", "gone")
    assert (gone.returncode, "output" in gone.stderr) == (0, False)


@pytest.mark.parametrize("how", ["full", "gone"])
def test_a_failure_with_a_lost_document_is_text(how: str) -> None:
    ran = lost("create-vm vdi-1 --profile A100-40C:2 --json", how)
    assert (ran.returncode, "[no-capacity]" in ran.stderr) == (4, True)


_REMOTE = """
import sys
from vgpuctl.cli import failures, remote_result
from vgpuctl.cli.global_options import Settings
from vgpuctl.remote.reply import Reply
from vgpuctl.remote.fanout import HostReply
from vgpuctl.remote.session import Target
done = {"steps": ["cordon it"], "notes": [], "dry_run": False, "findings": [
    {"kind": "leaked", "what": "a claim", "action": "removed"}]}
error = {"code": "busy", "message": "it works", "hint": None, "facts": {}, "exit_status": 75, "undone": [], "left": []}
body = {"schema": "vgpuctl/1", "kind": "reconcile-host", "warnings": []}
good = Reply({**body, "ok": True, "changed": True, "data": done}, 0)
bad = Reply({**body, "ok": False, "changed": False, "error": error}, 75)
replies = [HostReply(Target(name, name), 0.1, answer) for name, answer in (("gpu-1", good), ("gpu-2", bad))]
settings = Settings(json="--json" in sys.argv)
settings.kind = "reconcile-host"
publish = (remote_result.print_reply, replies[0]) if "one" in sys.argv else (remote_result.print_replies, replies)
try:
    sys.exit(publish[0](settings, publish[1], 0))
except Exception as exc:
    sys.exit(failures.report(exc, settings))
"""


@pytest.mark.parametrize("words", [["one"], ["one", "--json"], ["all"], ["all", "--json"]])
def test_results_of_other_hosts_are_shown(words: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-c", _REMOTE, *words]
        ran = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=child_environment(), check=False
        )
    assert (ran.returncode, "reconcile-host is done" in ran.stderr, "[output-lost]" in ran.stderr) == (5, True, True)
    if "all" in words:
        assert "gpu-2: it works" in ran.stderr
        assert "gpu-1: " in ran.stderr


TABLE = Table(("ADDRESS", "FREE", "MODEL"), (("0000:3b:00.0", "10", "A100"), ("mtty", "?", "-")), frozenset({"FREE"}))
LONG = Table(
    ("NAME", "STATE", "NOTE"),
    (("a-name-that-is-long", "running", "a sentence that nobody needs completely"), ("b", "stopped", "short")),
    free_text=frozenset({"NOTE"}),
    states=frozenset({"STATE"}),
)
_SEQUENCE = re.compile(r"\x1b\[\d+m")


def test_a_table() -> None:
    assert render([TABLE]) == "ADDRESS       FREE  MODEL\n0000:3b:00.0    10  A100\nmtty             ?  -\n"
    assert render([TABLE], Look(has_headers=False)) == "0000:3b:00.0  10  A100\nmtty           ?  -\n"


def test_pairs_and_text() -> None:
    assert render([Pairs((("name", "vdi-001"), ("numa node", "1"))), "", "text"]) == (
        "name:      vdi-001\nnuma node: 1\n\ntext\n"
    )


@pytest.mark.parametrize("width", range(1, 90))
def test_a_narrow_terminal_cuts_free_text_alone(width: int) -> None:
    lines = render([LONG], Look(width)).splitlines()
    assert all(line.startswith(name) for line, name in zip(lines, ("NAME", "a-name-that-is-long", "b"), strict=True))
    assert "running" in lines[1]
    longest = max(len(line) for line in lines)
    assert longest <= max(width, 19 + 2 + 7 + 2 + 12)
    assert ("…" in lines[1]) is (width < 19 + 2 + 7 + 2 + 39)


def test_colours_change_no_column() -> None:
    coloured = render([LONG, Pairs((("state", "running"),))], Look(has_colours=True))
    assert _SEQUENCE.sub("", coloured) == render([LONG, Pairs((("state", "running"),))])
    assert coloured.count("\x1b[32mrunning\x1b[0m") == 2
    assert "\x1b[2mstopped\x1b[0m" in coloured


def test_wide_characters_keep_the_columns() -> None:
    lines = render([Table(("A", "B"), (("机器", "x"), ("é", "x"), ("e\u0301", "x")))]).splitlines()
    assert {text_width(line) for line in lines} == {len("机器") * 2 + 3}


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5), st.integers(1, 30))
def test_a_row_is_a_line_whatever_is_in_it(rows: list[tuple[str, str]], width: int) -> None:
    table = Table(("A", "B"), tuple(rows), free_text=frozenset({"B"}))
    for chosen in (Look(), Look(width)):
        text = render([table], chosen)
        assert text.count("\n") == len(rows) + 1
        assert not any(ord(character) < 32 and character != "\n" for character in text if character != "\t")

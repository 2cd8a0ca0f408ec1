# SPDX-License-Identifier: Apache-2.0
"""Closed pipes, full disks, odd encodings; if a result cannot be written, stderr shows what changed."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import ROOT, Run, child, child_environment
from vgpuctl.cli.streams import sanitize

_PRINT = (
    "import sys\nfrom vgpuctl.cli import run\nfrom vgpuctl.cli.run import CommandOutput\n"
    "from vgpuctl.model.outcome import QueryResult\nfrom vgpuctl.model.results.host import CompletionResult\n"
    "from vgpuctl.cli.global_options import Settings\n"
    "sys.exit(run.perform(Settings(json='--json' in sys.argv), 'completion',"
    " lambda guard: CommandOutput(QueryResult(CompletionResult('bash', 'é\\udcff' * 100000)),"
    " raw='é\\udcff' * 100000)))"
)


def test_clean_keeps_text_and_replaces_controls() -> None:
    assert sanitize("Größe\tx\ny") == "Größe\tx\ny"
    assert sanitize("a\x1b[2Jb\u202ec") == "a\ufffd[2Jb\ufffdc"


HIDDEN = "\u200e\u200f\u061c\u202e\u2066\u200b\ufeff\xad\x9b\U000e0041\u3164"
SCENARIO = """\
version: 1
title: a VM of somebody whose name hides something
storage: {pools: [{name: default}]}
gpus:
  - model: T4
    address: "0000:5e:00.0"
    vgpus:
      - {profile: T4-4Q, vm: "NAME"}
"""
LINES = (
    "list-vms", "list-gpus", "list-vgpus", "show-gpu 0000:5e:00.0", "show-vm 'NAME'", "stop-vm 'NAME'",
    "start-vm 'NAME'", "delete-vm 'NAME' --yes", "attach-vgpu 'NAME' --profile T4-4Q --dry-run",
    "reconcile-host", "doctor",
    "explain T4-16Q", "create-vm 'NAME' --profile T4-4Q", "show-vm 'NAMEx'", "cordon 0000:5e:00.0", "import /NAME",
    "create-vm a --profile 'NAME'", "create-vm a --profile T4-4Q --image '/NAME'", "'NAME'", "--'NAME' list-vms",
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_no_name_can_send_control_characters(tmp_path: Path, vgpuctl: Run, line: str) -> None:
    """A VM that virsh created may have any name; tables, errors, hints, warnings and JSON show it."""
    name = f"vdi-{HIDDEN}001"
    path = tmp_path / "host.yaml"
    path.write_text(SCENARIO.replace("NAME", "".join(f"\\U{ord(c):08x}" for c in name)), encoding="utf-8")
    for words in (line, f"-v {line}", f"{line} --json"):
        ran = vgpuctl("--host", f"sim:{path}", *shlex.split(words.replace("NAME", name)))
        assert "[bug]" not in ran.err
        assert not {*HIDDEN} & {*ran.out, *ran.err}
        if "--json" in words and line == "list-vms":
            assert ran.document["data"][0]["name"] == name


def test_a_closed_pipe_is_no_error() -> None:
    for words in ([], ["--json"]):
        with subprocess.Popen(
            [sys.executable, "-c", _PRINT, *words],
            env=child_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(1)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(timeout=30) == 0


def test_an_encoding_without_the_letters_loses_only_those() -> None:
    ran = child(code=_PRINT, env=child_environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("??")


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"LC_ALL": "C"}, b"11 x A100-4C"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, b"11 x A100-4C"),
        ({"PYTHONIOENCODING": "ascii"}, b"11 x A100-4C"),
        ({"PYTHONIOENCODING": "latin-1"}, b"11 \xd7 A100-4C"),
        ({"LC_ALL": "C.UTF-8"}, "11 × A100-4C".encode()),
    ],
)
def test_symbols_become_ascii_only_if_the_encoding_lacks_them(
    environment: dict[str, str], shown: bytes, tmp_path: Path
) -> None:
    words = ("--host", "sim:a100-40", "create-vm", "--profile", "A100-4C:11")
    env = child_environment(XDG_STATE_HOME=str(tmp_path), **environment)
    line = [sys.executable, "-m", "vgpuctl", *words]
    ran = subprocess.run(line, env=env, capture_output=True, check=False)
    assert (ran.returncode, shown in ran.stderr) == (4, True), ran.stderr
    ran = subprocess.run([*line, "--json"], env=env, capture_output=True, check=False)
    error = json.loads(ran.stdout.decode(environment.get("PYTHONIOENCODING", "utf-8")))["error"]
    assert error["message"].startswith("no room for 11 × A100-4C")


def test_every_printed_symbol_has_an_ascii_form() -> None:
    """`model/names.py` lists the characters that are never printed; the live screen has bars of ASCII, too.

    A browser shows every character.
    """
    signs: set[str] = set()
    live = {*(ROOT / "vgpuctl/cli/live").rglob("*.py"), *(ROOT / "vgpuctl/controller/web").rglob("*.py")}
    for path in set((ROOT / "vgpuctl").rglob("*.py")) - live - {ROOT / "vgpuctl" / "model/names.py"}:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                signs.update(sign for sign in sanitize(node.value) if not sign.isascii())
    assert {"×", "…"} <= signs
    assert {sign for sign in signs if sign.encode("ascii", "vgpuctl-ascii") == b"?"} == {"\N{REPLACEMENT CHARACTER}"}


def test_closed_streams_are_no_error() -> None:
    script = 'exec "$0" -c "$1" >&- 2>&-'
    ran = subprocess.run(["sh", "-c", script, sys.executable, _PRINT], env=child_environment(), check=False)
    assert ran.returncode == 0


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
    text = "vgpuctl: the result could not be written: No space left on device   [output]"
    assert full.stderr.splitlines()[-1] == text
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

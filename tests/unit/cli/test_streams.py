# SPDX-License-Identifier: Apache-2.0
"""Closed pipes, full disks, odd encodings."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import ROOT, Ran, child, child_environment
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
def test_no_name_can_send_control_characters(tmp_path: Path, vgpuctl: Callable[..., Ran], line: str) -> None:
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


def test_a_full_disk_is_an_error() -> None:
    for words in ([], ["--json"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            ran = subprocess.run(
                [sys.executable, "-c", _PRINT, *words],
                env=child_environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert ran.returncode == 1
        assert ran.stderr == "vgpuctl: the result could not be written: No space left on device   [output]\n"


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
    """`model/names.py` lists the characters that are never printed."""
    signs: set[str] = set()
    for path in set((ROOT / "vgpuctl").rglob("*.py")) - {ROOT / "vgpuctl" / "model/names.py"}:
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

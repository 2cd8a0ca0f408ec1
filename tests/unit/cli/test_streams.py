# SPDX-License-Identifier: Apache-2.0
"""Readers that go away, full disks, odd encodings."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.cli.conftest import child, child_environment
from vgpuctl.cli.streams import clean

_PRINT = (
    "import sys\nfrom vgpuctl.cli import run\nfrom vgpuctl.cli.result import Result\n"
    "from vgpuctl.cli.settings import Settings\n"
    "sys.exit(run.perform(Settings(json='--json' in sys.argv), 'completion',"
    " lambda guard: Result({'shell': 'bash', 'script': 'é\\udcff' * 100000}, raw='é\\udcff' * 100000)))"
)


def test_clean_keeps_text_and_replaces_controls() -> None:
    assert clean("Größe\tx\ny") == "Größe\tx\ny"
    assert clean("a\x1b[2Jb\u202ec") == "a\ufffd[2Jb\ufffdc"


def test_a_reader_that_goes_away_is_quiet() -> None:
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


def test_closed_streams_are_no_error() -> None:
    script = 'exec "$0" -c "$1" >&- 2>&-'
    ran = subprocess.run(["sh", "-c", script, sys.executable, _PRINT], env=child_environment(), check=False)
    assert ran.returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""Signals: the first undoes, the second stops the undo, and the document stays one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.unit.cli.conftest import child_environment

_WORK = """
import sys, time
from vgpuctl.cli import run
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import Interrupted

def wait(what):
    print(what, file=sys.stderr, flush=True)
    time.sleep(30)

def work():
    try:
        wait("working")
    except Interrupted as stopped:
        if "again" in sys.argv:
            try:
                wait("undoing")
            except KeyboardInterrupt:
                stopped.left.append("the disk")
                if "escape" in sys.argv:
                    raise
        else:
            stopped.undone.append("the disk")
        raise

sys.exit(run.perform(Settings(json=True), "create-vm", work))
"""


def stopped_by(*words: str, signals: list[signal.Signals]) -> tuple[int, dict[str, object]]:
    with subprocess.Popen(
        [sys.executable, "-c", _WORK, *words],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for number in signals:
            assert process.stderr.readline()
            process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert err == ""
        return process.returncode, json.loads(out)["error"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_undoes(number: signal.Signals, status: int) -> None:
    got, error = stopped_by(signals=[number])
    assert got == status
    assert error["code"] == "interrupted"
    assert error["undone"] == ["the disk"]


@pytest.mark.parametrize("escape", [[], ["escape"]])
@pytest.mark.parametrize(("first", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_stops_the_undo_and_says_what_is_left(first: signal.Signals, status: int, escape: list[str]) -> None:
    got, error = stopped_by("again", *escape, signals=[first, signal.SIGINT])
    assert got == status
    assert error["left"] == ["the disk"]

# SPDX-License-Identifier: Apache-2.0
"""Signals: the first undoes, the second stops the undo, and there is exactly one document."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.unit.cli.conftest import child, child_environment
from vgpuctl.cli import entry

_WORK = """
import sys, time
from vgpuctl.cli import run
from vgpuctl.cli.global_options import Settings
from vgpuctl.errors import Interrupted

def wait(what):
    print(what, file=sys.stderr, flush=True)
    time.sleep(30)

def work(guard):
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


def stopped_by(*words: str, numbers: list[signal.Signals]) -> tuple[int, dict[str, object]]:
    with subprocess.Popen(
        [sys.executable, "-c", _WORK, *words],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for number in numbers:
            assert process.stderr.readline()
            process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert err == ""
        return process.returncode, json.loads(out)["error"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_undoes(number: signal.Signals, status: int) -> None:
    got, error = stopped_by(numbers=[number])
    assert got == status
    assert error["code"] == "interrupted"
    assert error["undone"] == ["the disk"]


@pytest.mark.parametrize("escape", [[], ["escape"]])
@pytest.mark.parametrize(("first", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_stops_the_undo_and_says_what_is_left(first: signal.Signals, status: int, escape: list[str]) -> None:
    got, error = stopped_by("again", *escape, numbers=[first, signal.SIGINT])
    assert got == status
    assert error["left"] == ["the disk"]


_LOST = """
import signal, sys, weakref
from vgpuctl.cli import run
from vgpuctl.cli.global_options import Settings

class Thing:
    pass

def work(guard):
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    del thing
    guard.check()
    raise AssertionError("it went on")

sys.exit(run.perform(Settings(json=True), "create-vm", work))
"""


def test_a_signal_that_python_loses_stops_the_next_step() -> None:
    ran = child(code=_LOST)
    assert ran.returncode == 143
    assert ran.stderr == ""
    assert json.loads(ran.stdout)["error"]["code"] == "interrupted"


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in entry.SIGNALS]
    with entry.handle_signals() as guard:
        assert signal.getsignal(signal.SIGTERM) == guard.handle
        with entry.handle_signals() as inner:
            assert inner is guard
        guard.ignore_signals()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert [signal.getsignal(number) for number in entry.SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with entry.handle_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


_IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click.decorators":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["vgpuctl", "--json", "list-gpus"]
from vgpuctl.cli.entry import main
sys.exit(main())
"""


def test_ctrl_c_while_click_is_imported_prints_one_document() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORTING], env=child_environment(), capture_output=True, text=True, check=False
    )
    assert (ran.returncode, "Traceback" in ran.stderr) == (130, False)
    assert json.loads(ran.stdout)["error"]["code"] == "interrupted"

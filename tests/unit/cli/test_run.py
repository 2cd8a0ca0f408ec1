# SPDX-License-Identifier: Apache-2.0
"""One result printed once, as text or as a document."""

from __future__ import annotations

import json
import threading

import pytest

from tests.unit.cli.test_listings import GPU, result
from tests.unit.cli.test_progress import Terminal
from vgpuctl.cli import run
from vgpuctl.cli.entry import SignalGuard
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.errors import NoCapacity
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.host import FindingResult, ReconcileResult

RECONCILED = Outcome(
    True,
    ReconcileResult((FindingResult("leaked", "a claim", "removed"),)),
    ("remove it",),
    ("libvirt was not asked",),
    ("no system is on its disk",),
)
GPUS = CommandOutput(result("list-gpus", [GPU]))


def test_text_on_stdout_and_the_rest_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.perform(Settings(), "reconcile-host", lambda guard: CommandOutput(RECONCILED)) == 0
    captured = capsys.readouterr()
    assert captured.out == "a claim\n  removed\n"
    assert captured.err == "warning: libvirt was not asked\nnote: no system is on its disk\n"
    assert run.perform(Settings(), "list-gpus", lambda guard: GPUS) == 0
    assert capsys.readouterr().err == "0000:3b:00.0: a fan is loud\n"


def test_json_output_has_no_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.perform(Settings(json=True), "reconcile-host", lambda guard: CommandOutput(RECONCILED)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["warnings"] == ["libvirt was not asked"]


def test_an_error_is_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    def work(guard: SignalGuard) -> CommandOutput:
        raise NoCapacity("full")

    assert run.perform(Settings(json=True), "create-vm", work) == 4
    assert json.loads(capsys.readouterr().out)["kind"] == "create-vm"


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    assert run.perform(Settings(), "list-gpus", lambda guard: GPUS) == 0
    assert "NVIDIA A100-PCIE-40GB" in screen.getvalue()


def test_a_page_that_cannot_be_made_is_a_bug_not_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.perform(Settings(), "list-gpus", lambda guard: CommandOutput(QueryResult(({},)))) == 1
    assert "[bug]" in capsys.readouterr().err


def test_another_thread_has_no_signals_to_handle(capsys: pytest.CaptureFixture[str]) -> None:
    statuses: list[int] = []
    thread = threading.Thread(
        target=lambda: statuses.append(
            run.perform(Settings(), "list-vms", lambda guard: CommandOutput(QueryResult(())))
        )
    )
    thread.start()
    thread.join()
    assert statuses == [0]

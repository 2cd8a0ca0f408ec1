# SPDX-License-Identifier: Apache-2.0
"""Progress: lines in a pipe, a changing line on a terminal, silence for programs."""

from __future__ import annotations

import io

import pytest

from tests.unit.cli.test_confirm import Terminal as Screen
from vgpuctl.cli import progress
from vgpuctl.cli.settings import Settings


def go(shown: progress.SilentProgress) -> None:
    shown.on_plan(("make the disk", "start"))
    shown.on_step_start(1, "make the disk")
    shown.on_step_finish(1, "make the disk")
    shown.on_step_start(2, "start")
    shown.on_step_undo("make the disk")
    shown.close()


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    go(progress.choose_progress(Settings()))
    assert stream.getvalue() == "[1/2] make the disk\nundoing: make the disk\n"


def test_a_terminal_gets_a_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Screen()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    go(progress.choose_progress(Settings()))
    shown = stream.getvalue()
    assert shown.count("\n") == 2
    assert "✓\x1b[0m [1/2] make the disk\n" in shown
    assert stream.getvalue().endswith(progress.TerminalProgress.CLEAR)


def test_no_progress_in_a_pipe_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    go(progress.choose_progress(Settings(json=True)))
    assert stream.getvalue() == ""
    go(progress.choose_progress(Settings(json=True, verbose=True)))
    assert "[1/2] make the disk" in stream.getvalue()


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Screen()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    go(progress.choose_progress(Settings()))
    assert "✓ [1/2] make the disk\n" in stream.getvalue()
    assert "\x1b[32m" not in stream.getvalue()

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


def copying(shown: progress.SilentProgress, *percentages: float) -> None:
    shown.on_plan(("copy",))
    for percent in percentages:
        shown.on_step_progress(1, "copy", percent)
    shown.on_step_finish(1, "copy")
    shown.close()


def test_a_pipe_gets_a_line_about_a_long_copy_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, times = io.StringIO(), iter([10.0, 12.9, 13.0, 15.9, 16.1])
    monkeypatch.setattr("sys.stderr", stream)
    copying(progress.LineProgress(lambda: next(times)), 0.0, 10.0, 20.0, 30.0, 40.6)
    assert stream.getvalue() == "[1/1] 20% copy\n[1/1] 41% copy\n[1/1] copy\n"


def test_a_program_gets_them_only_if_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    copying(progress.choose_progress(Settings(json=True)), 10.0)
    assert stream.getvalue() == ""


def test_a_terminal_shows_the_percentage_on_the_line_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Screen()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    copying(progress.choose_progress(Settings()), 10.0, 55.2)
    assert "… [1/1] 10% copy" in stream.getvalue()
    assert "… [1/1] 55% copy" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1

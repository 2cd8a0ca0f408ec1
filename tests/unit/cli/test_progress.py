# SPDX-License-Identifier: Apache-2.0
"""Progress: lines in a pipe, a changing line on a terminal, silence for programs."""

from __future__ import annotations

import io

import pytest

from tests.unit.cli.test_confirm import Terminal as Screen
from vgpuctl.cli import progress
from vgpuctl.cli.settings import Settings


def go(shown: progress.Silent) -> None:
    shown.planned(("make the disk", "start"))
    shown.started(1, "make the disk")
    shown.finished(1, "make the disk")
    shown.started(2, "start")
    shown.undoing("make the disk")
    shown.close()


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    go(progress.choose(Settings()))
    assert stream.getvalue() == "[1/2] make the disk\nundoing: make the disk\n"


def test_a_terminal_gets_a_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Screen()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    go(progress.choose(Settings()))
    shown = stream.getvalue()
    assert shown.count("\n") == 2
    assert "✓\x1b[0m [1/2] make the disk\n" in shown
    assert stream.getvalue().endswith(progress.Terminal.CLEAR)


def test_a_program_gets_nothing_unless_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    go(progress.choose(Settings(json=True)))
    assert stream.getvalue() == ""
    go(progress.choose(Settings(json=True, verbose=True)))
    assert "[1/2] make the disk" in stream.getvalue()


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Screen()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    go(progress.choose(Settings()))
    assert "✓ [1/2] make the disk\n" in stream.getvalue()
    assert "\x1b[32m" not in stream.getvalue()

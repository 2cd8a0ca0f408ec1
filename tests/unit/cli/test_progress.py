# SPDX-License-Identifier: Apache-2.0
"""Prompts, which only a person or --yes can confirm; progress: lines in a pipe, one that changes on a terminal."""

from __future__ import annotations

import io

import pytest

from vgpuctl.cli import progress
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.progress import ConfirmationPrompt
from vgpuctl.errors import NeedsConfirmation


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def stderr_to(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Let the test write to this stream, which has colours if it is a terminal."""
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def prompted(answer: str, monkeypatch: pytest.MonkeyPatch) -> str:
    screen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", screen)
    ConfirmationPrompt(Settings())("delete vdi-001?", ("its disk a.qcow2", "its NVRAM"))
    return screen.getvalue()


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_a_person_sees_the_details_and_says_yes(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompted(answer, monkeypatch) == "  its disk a.qcow2\n  its NVRAM\ndelete vdi-001? [y/N] "


@pytest.mark.parametrize("answer", ["\n", "n\n", "", "yess\n"])
def test_anything_else_is_no(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeedsConfirmation, match="nothing changed"):
        prompted(answer, monkeypatch)


def test_yes_does_not_ask() -> None:
    ConfirmationPrompt(Settings(yes=True, json=True))("delete vdi-001?", ())


@pytest.mark.parametrize("json", [False, True])
def test_nobody_to_ask_names_yes(json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\n") if json else io.StringIO("y\n"))
    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(NeedsConfirmation) as caught:
        ConfirmationPrompt(Settings(json=json))("delete vdi-001?", ("its disk",))
    assert caught.value.hint == "rerun with --yes"
    assert caught.value.facts == {"lines": ["its disk"]}


def go(shown: progress.SilentProgress) -> None:
    shown.on_plan(("make the disk", "start"))
    shown.on_step_start(1, "make the disk")
    shown.on_step_finish(1, "make the disk")
    shown.on_step_start(2, "start")
    shown.on_step_undo("make the disk")
    shown.close()


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = stderr_to(io.StringIO(), monkeypatch)
    go(progress.choose_progress(Settings()))
    assert pipe.getvalue() == "[1/2] make the disk\nundoing: make the disk\n"


def test_a_terminal_gets_a_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_to(Terminal(), monkeypatch)
    go(progress.choose_progress(Settings()))
    shown = screen.getvalue()
    assert shown.count("\n") == 2
    assert "✓\x1b[0m [1/2] make the disk\n" in shown
    assert shown.endswith(progress.TerminalProgress.CLEAR)


def test_no_progress_for_a_program_unless_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = stderr_to(io.StringIO(), monkeypatch)
    go(progress.choose_progress(Settings(json=True)))
    assert pipe.getvalue() == ""
    go(progress.choose_progress(Settings(json=True, verbose=True)))
    assert "[1/2] make the disk" in pipe.getvalue()


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_to(Terminal(), monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    go(progress.choose_progress(Settings()))
    assert "✓ [1/2] make the disk\n" in screen.getvalue()
    assert "\x1b[32m" not in screen.getvalue()


def copying(shown: progress.SilentProgress, *percentages: float) -> None:
    shown.on_plan(("copy",))
    for percent in percentages:
        shown.on_step_progress(1, "copy", percent)
    shown.on_step_finish(1, "copy")
    shown.close()


def test_a_pipe_gets_a_line_about_a_long_copy_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = stderr_to(io.StringIO(), monkeypatch)
    times = iter([10.0, 12.9, 13.0, 15.9, 16.1])
    copying(progress.LineProgress(lambda: next(times)), 0.0, 10.0, 20.0, 30.0, 40.6)
    assert pipe.getvalue() == "20% copy\n41% copy\ncopy\n"


def test_a_terminal_shows_the_percentage_on_the_line_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_to(Terminal(), monkeypatch)
    copying(progress.choose_progress(Settings()), 10.0, 55.2)
    assert "… 10% copy" in screen.getvalue()
    assert "… 55% copy" in screen.getvalue()
    assert screen.getvalue().count("\n") == 1


STEPS = (
    "claim all of GPU 0000:3b:00.0 while it is set up",
    *(f"shut down VM q-{n}" for n in range(5)),
    *(f"remove vGPU L40S-4Q from 0000:3b:00.{n} temporarily" for n in range(4)),
    "set the scheduler",
    *(f"create vGPU L40S-4Q on 0000:3b:00.{n}" for n in range(3)),
    "release the claim on 0000:3b:00.0",
)


def test_steps_of_a_kind_get_one_line_and_claims_get_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = stderr_to(io.StringIO(), monkeypatch)
    shown = progress.choose_progress(Settings())
    shown.on_plan(STEPS)
    for number, text in enumerate(STEPS, start=1):
        shown.on_step_start(number, text)
        shown.on_step_finish(number, text)
    assert pipe.getvalue().splitlines() == [
        "[1/6] shut down VM: 5 of them",
        "[2/6] remove vGPU L40S-4Q: 4 of them",
        "[3/6] set the scheduler",
        *(f"[{n + 4}/6] create vGPU L40S-4Q on 0000:3b:00.{n}" for n in range(3)),
    ]


def test_the_only_line_of_a_plan_has_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = stderr_to(io.StringIO(), monkeypatch)
    shown = progress.choose_progress(Settings())
    shown.on_plan(("claim 0000:3b:00.4 on GPU 0000:3b:00.0 for L40S-4Q", "create vGPU L40S-4Q on 0000:3b:00.4"))
    shown.on_step_finish(1, "claim 0000:3b:00.4 on GPU 0000:3b:00.0 for L40S-4Q")
    shown.on_step_finish(2, "create vGPU L40S-4Q on 0000:3b:00.4")
    shown.on_step_finish(3, "start VM q-1")
    assert pipe.getvalue() == "create vGPU L40S-4Q on 0000:3b:00.4\n[3] start VM q-1\n"

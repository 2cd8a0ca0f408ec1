# SPDX-License-Identifier: Apache-2.0
"""Prompts: only a person or --yes can confirm."""

from __future__ import annotations

import io

import pytest

from vgpuctl.cli.confirm import ConfirmationPrompt
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import NeedsConfirmation


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


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

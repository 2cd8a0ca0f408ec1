# SPDX-License-Identifier: Apache-2.0
"""Asking before something is lost: on a terminal the user, otherwise only --yes will do."""

from __future__ import annotations

import sys

from vgpuctl.cli import streams
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import NeedsConfirmation


class Question:
    """Answers the engine's question: `--yes`, a person, or NeedsConfirmation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, question: str, details: tuple[str, ...]) -> None:
        """Return when the answer is yes.

        Raises:
            NeedsConfirmation: the answer is no, or nobody can be asked.
        """
        if self.settings.yes:
            return
        if self.settings.json or not (_asks(sys.stdin) and _asks(sys.stderr)):
            raise NeedsConfirmation(
                f"nobody can be asked here: {question}",
                hint="--yes answers yes",
                lines=list(details),
            )
        for line in details:
            streams.write_err(f"  {streams.clean(line)}")
        streams.write_err_raw(f"{streams.clean(question)} [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NeedsConfirmation("not confirmed: nothing was changed", hint="answer y, or say --yes")


def _asks(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty())

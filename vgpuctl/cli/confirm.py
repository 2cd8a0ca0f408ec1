# SPDX-License-Identifier: Apache-2.0
"""Confirmation before something is lost: the user confirms on a terminal; elsewhere only --yes does."""

from __future__ import annotations

import sys

from vgpuctl.cli import streams
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import NeedsConfirmation


class ConfirmationPrompt:
    """Answers the library's question: by `--yes`, by asking the user, or with NeedsConfirmation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, question: str, details: tuple[str, ...]) -> None:
        """Return normally if the answer is yes.

        Raises:
            NeedsConfirmation: the answer is no, or there is no user to ask.
        """
        if self.settings.yes:
            return
        if self.settings.json or not (_is_tty(sys.stdin) and _is_tty(sys.stderr)):
            raise NeedsConfirmation(
                f"confirmation required, but there is no terminal: {question}",
                hint="rerun with --yes",
                lines=list(details),
            )
        for line in details:
            streams.write_err(f"  {streams.sanitize(line)}")
        streams.write_err_raw(f"{streams.sanitize(question)} [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NeedsConfirmation("not confirmed: nothing changed")


def _is_tty(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty())

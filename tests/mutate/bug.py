# SPDX-License-Identifier: Apache-2.0
"""What one planted bug is, and how it is put into a checkout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class DoesNotApply(Exception):
    """The old text is not in the file exactly once: the code changed, and the bug has to follow it."""


@dataclass(frozen=True)
class Bug:
    """`old` is replaced by `new` in `file`. `tests`: files, directories or test ids for pytest."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, checkout: Path) -> str:
        """Return the file's text with the bug in it.

        Raises:
            DoesNotApply: the old text is not there exactly once.
        """
        text = (checkout / self.file).read_text()
        result = text.count(self.old)
        if result != 1:
            raise DoesNotApply(f"{self.name}: {self.file} has the old text {result} times, not once")
        return text.replace(self.old, self.new)

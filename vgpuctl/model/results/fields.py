# SPDX-License-Identifier: Apache-2.0
"""What the fields of results have in common.

A field that may be absent has the default `ABSENT`; JSON then lacks it. `Annotated[str, "one", "two"]` is one of these
words; a host with another version may send another word.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from vgpuctl.value import Value


class Absent(Enum):
    """The type of `ABSENT`, the default of a field that may be absent."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


class WorkResult(Value):
    """What every changing command reports in addition to its own data."""

    steps: tuple[str, ...]
    notes: tuple[str, ...]
    dry_run: bool

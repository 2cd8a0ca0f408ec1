# SPDX-License-Identifier: Apache-2.0
"""The result of every command as a record: the table for people, the JSON `data` and its schema come from these.

Units are in the names, addresses and ids are strings, unknown is None. Fields are added, never renamed. One module for
each subject.

What they have in common is here: fields that may be absent, what every changing command reports, and the `data` of a
command on several VMs, vGPUs or GPUs, which has one entry for each of them. A field that may be absent has the default
`ABSENT`; JSON then lacks it. `Annotated[str, "one", "two"]` is one of these words; a host with another version may send
another word.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Generic, TypeVar

from vgpuctl.value import Value

Data = TypeVar("Data", covariant=True)


class Absent(Enum):
    """The type of `ABSENT`, the default of a field that may be absent."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


class WorkResult(Value):
    """What every changing command reports in addition to its own data."""

    steps: tuple[str, ...]
    notes: tuple[str, ...]
    dry_run: bool


class SelectedResult(Value):
    """A VM, vGPU or GPU that the user means.

    `state` of a VM: whether it runs; `image`: the image that its first disk was made from. Null for others.
    """

    name: str
    state: str | None
    image: str | None = None


class TargetErrorResult(Value):
    """Why the command failed for one of them; the fields are those of the document's `error`.

    `state`: the state that a VM has after that, null if it is not known, or for others.
    """

    code: str
    message: str
    hint: str | None
    exit_status: int
    undone: tuple[str, ...]
    left: tuple[str, ...]
    state: str | None = None


class TargetResult(Value, Generic[Data]):
    """One of them. `data`: what the command has as `data` for this one alone, null if it failed; `error`: why."""

    name: str
    ok: bool
    changed: bool
    steps: tuple[str, ...]
    data: Data | None
    error: TargetErrorResult | None


class TallyResult(Value):
    """How many were changed, needed no change, and failed."""

    changed: int
    unchanged: int
    failed: int


class TargetsResult(Value, Generic[Data]):
    """Each VM, vGPU or GPU that a command was for, in the order of the names; also when some of them failed."""

    targets: tuple[TargetResult[Data], ...]
    tally: TallyResult

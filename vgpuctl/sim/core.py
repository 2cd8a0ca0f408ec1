# SPDX-License-Identifier: Apache-2.0
"""What the simulated sysfs, NVML, libvirt and storage share: the machine, its state and its journal.

A call that only looks reads the journal's tail first, so it sees what other processes did. A call that
changes something holds the journal while it checks the rules and writes; either all of its records are on
disk when it returns or none.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vgpuctl.errors import InvalidInput
from vgpuctl.sim.faults import Fault, meeting
from vgpuctl.sim.journal import Damaged, Journal, Record
from vgpuctl.sim.machine import Machine, build
from vgpuctl.sim.state import State

FORMAT = 2
COMPACT_BYTES = 4 << 20


class Change:
    """The records that an operation makes; nothing is done while `lost` (a fault) is set."""

    def __init__(self, fault: Fault | None) -> None:
        self.records: list[Record] = []
        self.fault = fault

    def add(self, *record: object) -> None:
        """Note one record."""
        self.records.append(list(record))

    @property
    def lost(self) -> bool:
        """Whether the operation is acknowledged but does nothing."""
        return self.fault is not None and self.fault.kind == "lost"

    @property
    def parks(self) -> bool:
        """Whether the write waits in the kernel until the next boot."""
        return self.fault is not None and self.fault.kind == "park"

    @property
    def pends(self) -> bool:
        """Whether MIG's mode changes at the GPU's next reset only."""
        return self.fault is not None and self.fault.kind == "pending"


class Core:
    """One simulated host's state, shared with other processes through its journal."""

    machine: Machine
    state: State

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.machine_id = ""
        self.digest = ""
        self.lock_held: Callable[[], bool] = lambda: False
        self.turn = threading.RLock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(directory, 0o700)
        self.journal = Journal(directory, self._restart, lambda records: self.state.apply(records))

    def damaged(self, why: str) -> InvalidInput:
        """Return the error for a state that cannot be used, with the way out."""
        return InvalidInput(
            f"the simulated host {self.name} cannot go on: {why}",
            hint=f"forget it with: vgpuctl --host sim:{self.name} sim reset",
            state=str(self.directory),
        )

    # ------------------------------------------------------------- beginning

    def begin(self, digest: str, compiled: Callable[[], Mapping[str, Any]]) -> None:
        """Open the state, or make it from the compiled scenario when there is none.

        Raises:
            InvalidInput: the state is damaged, or was made from another scenario text.
        """
        try:
            with self.journal.locked():
                if not self.journal.path.exists():
                    self.forget(digest, compiled())
        except Damaged as exc:
            raise self.damaged(f"its journal is damaged ({exc})") from exc
        if digest != self.digest and compiled() != self.machine.scenario:
            raise self.damaged("its scenario was changed since it was first used")
        if self.journal.path.stat().st_size > COMPACT_BYTES:
            self.compact()

    def forget(self, digest: str, compiled: Mapping[str, Any]) -> None:
        """Begin again as the scenario says, with an empty /etc/vgpuctl. Only inside the journal's lock."""
        (self.directory / "etc" / "vgpuctl").mkdir(mode=0o700, parents=True, exist_ok=True)
        header = {
            "vgpuctl-sim": FORMAT,
            "digest": digest,
            "machine_id": os.urandom(16).hex(),
            "scenario": compiled,
        }
        self.journal.replace(header, list(compiled["found"]))

    def _restart(self, header: Any) -> None:
        if header["vgpuctl-sim"] != FORMAT:
            raise ValueError("written by another version of vgpuctl")
        self.digest = header["digest"]
        self.machine_id = header["machine_id"]
        self.machine = build(header["scenario"])
        self.state = State(self.machine)

    def compact(self) -> None:
        """Rewrite a journal that is mostly history. The rename makes it safe to be killed at any time."""
        with self.journal.locked():
            records = self.state.records()
            if self.journal.lines > 4 * len(records):
                header = {
                    "vgpuctl-sim": FORMAT,
                    "digest": self.digest,
                    "machine_id": self.machine_id,
                    "scenario": self.machine.scenario,
                }
                self.journal.replace(header, records)

    # --------------------------------------------------------------- calling

    def look(self, call: str | None = None, subject: str = "") -> State:
        """Return the state as it is now, after the fault that this call may meet.

        Raises:
            Met: the scenario injects a fault here.
        """
        self._refresh()
        if call is not None and self.machine.scenario["faults"]:
            fault = self._meet(call, subject)
            if fault is not None and fault.kind == "error":
                raise Met(fault)
        return self.state

    @contextmanager
    def change(self, call: str, subject: str) -> Iterator[Change]:
        """Hold the host for one operation and write its records at the end.

        Raises:
            Met: the scenario injects a fault here.
            AssertionError: this process holds the host lock.
        """
        assert not self.lock_held(), f"{call} {subject}: not while the host lock is held"
        try:
            with self.journal.locked():
                fault = self._meet(call, subject)
                if fault is not None and fault.kind == "error":
                    raise Met(fault)
                change = Change(fault)
                yield change
                if change.records and not change.lost:
                    self.journal.append(change.records)
        except Damaged as exc:
            raise self.damaged(f"its journal is damaged ({exc})") from exc
        except FileNotFoundError as exc:
            if exc.filename != str(self.journal.path):
                raise
            raise self.damaged("its state was removed while it was used") from exc

    def _refresh(self) -> None:
        try:
            self.journal.refresh()
        except Damaged as exc:
            raise self.damaged(f"its journal is damaged ({exc})") from exc
        except FileNotFoundError as exc:
            raise self.damaged("its state was removed while it was used") from exc

    def _meet(self, call: str, subject: str) -> Fault | None:
        """Return the first fault whose turn it is, and count the turns of all that match."""
        faults = self.machine.scenario["faults"]
        if not any(fault["on"] == call for fault in faults):
            return None
        met = list(meeting(faults, call, subject, self.state.hits))
        counted: list[Record] = [["hit", index] for index, _ in met if index >= 0]
        if counted:
            with self.journal.locked():
                self.journal.append(counted)
        return next((fault for _, fault in met if fault is not None), None)


class Met(Exception):
    """A call met an injected fault; each seam turns it into its own error."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault

# SPDX-License-Identifier: Apache-2.0
"""What the simulated sysfs, NVML, libvirt and storage share: the machine, its state and its journal.

A read first reads the end of the journal, so it sees what other processes did. A write locks the journal while
it checks the rules and appends its records. When it returns, either all of its records are on disk or none. Threads
call a simulated host one at a time, as at the kernel's and libvirt's locks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from vgpuctl.errors import InvalidInput
from vgpuctl.sim.faults import Fault, match_faults
from vgpuctl.sim.journal import Journal, JournalDamaged, JournalRecord
from vgpuctl.sim.machine import Machine, build_machine
from vgpuctl.sim.state import State

JOURNAL_FORMAT = 2
COMPACT_BYTES = 4 << 20


class StateChange:
    """The records that an operation makes. With the fault `lost` they are thrown away."""

    def __init__(self, fault: Fault | None) -> None:
        self.records: list[JournalRecord] = []
        self.fault = fault

    def add(self, *record: object) -> None:
        """Add one record."""
        self.records.append(list(record))

    @property
    def is_lost(self) -> bool:
        """Whether the operation reports success but does nothing."""
        return self.fault is not None and self.fault.kind == "lost"

    @property
    def is_parked(self) -> bool:
        """Whether the write hangs in the kernel until the next boot."""
        return self.fault is not None and self.fault.kind == "park"

    @property
    def is_pending(self) -> bool:
        """Whether the MIG mode changes only at the GPU's next reset."""
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
        self.open_peer: Callable[[str], Core] | None = None
        """Opens another simulated host by the address that a VM is sent to."""
        self.call_lock = threading.RLock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(directory, 0o700)
        self.readers: list[Callable[[list[JournalRecord] | None], None]] = []
        """Get the records of each line of the journal, whoever wrote it; None when it is read from its beginning.

        They are called under the host's lock, and only hand over what they get."""
        self.journal = Journal(directory, self._load_header, self._apply)

    def damage_error(self, reason: str) -> InvalidInput:
        """Return the error for a state that cannot be used. Its hint shows how to reset it."""
        return InvalidInput(
            f"the simulated host {self.name} cannot continue: {reason}",
            hint=f"vgpuctl --host sim:{self.name} sim reset",
            state=str(self.directory),
        )

    # --------------------------------------------------------------- opening

    def open_state(self, digest: str, compile_scenario: Callable[[], Mapping[str, Any]]) -> None:
        """Open the state, or create it from the compiled scenario if there is none.

        Raises:
            InvalidInput: the state is damaged, or was created from a different scenario text.
        """
        try:
            with self.journal.locked():
                if not self.journal.path.exists():
                    self.reset_state(digest, compile_scenario())
        except JournalDamaged as exc:
            raise self.damage_error(f"its journal is damaged ({exc})") from exc
        if digest != self.digest and compile_scenario() != self.machine.scenario:
            raise self.damage_error("its scenario was changed since it was first used")
        if self.journal.path.stat().st_size > COMPACT_BYTES:
            self.compact()

    def reset_state(self, digest: str, scenario: Mapping[str, Any]) -> None:
        """Set the host back to what the scenario says, with an empty /etc/vgpuctl. Call it with the journal locked."""
        (self.directory / "etc" / "vgpuctl").mkdir(mode=0o700, parents=True, exist_ok=True)
        header = {
            "vgpuctl-sim": JOURNAL_FORMAT,
            "digest": digest,
            "machine_id": os.urandom(16).hex(),
            "scenario": scenario,
        }
        self.journal.replace(header, list(scenario["found"]))

    def _load_header(self, header: Any) -> None:
        if header["vgpuctl-sim"] != JOURNAL_FORMAT:
            raise ValueError("written by another version of vgpuctl")
        self.digest = header["digest"]
        self.machine_id = header["machine_id"]
        self.machine = build_machine(header["scenario"])
        self.state = State(self.machine)
        for reader in self.readers:
            reader(None)

    def _apply(self, records: list[JournalRecord]) -> None:
        self.state.apply(records)
        for reader in self.readers:
            reader(records)

    def compact(self) -> None:
        """Rewrite a journal that is mostly history. The final rename makes it safe to be killed at any time."""
        with self.journal.locked():
            records = self.state.records()
            if self.journal.lines > 4 * len(records):
                header = {
                    "vgpuctl-sim": JOURNAL_FORMAT,
                    "digest": self.digest,
                    "machine_id": self.machine_id,
                    "scenario": self.machine.scenario,
                }
                self.journal.replace(header, records)

    # --------------------------------------------------------------- calling

    def read_state(self, call: str | None = None, subject: str = "") -> State:
        """Return the current state, or raise the fault that the scenario injects into this call.

        Raises:
            FaultInjected: the scenario injects a fault here.
        """
        self._refresh()
        if call is not None and self.machine.scenario["faults"]:
            fault = self._find_fault(call, subject)
            if fault is not None and fault.kind == "error":
                raise FaultInjected(fault)
        return self.state

    @contextmanager
    def operation(self, call: str, subject: str) -> Iterator[StateChange]:
        """Lock the host for one operation and write its records at the end.

        Raises:
            FaultInjected: the scenario injects a fault here.
            AssertionError: this process holds the host lock.
        """
        assert not self.lock_held(), f"{call} {subject}: not while the host lock is held"
        try:
            with self.journal.locked():
                fault = self._find_fault(call, subject)
                if fault is not None and fault.kind == "error":
                    raise FaultInjected(fault)
                change = StateChange(fault)
                yield change
                if change.records and not change.is_lost:
                    self.journal.append(change.records)
        except JournalDamaged as exc:
            raise self.damage_error(f"its journal is damaged ({exc})") from exc
        except FileNotFoundError as exc:
            if exc.filename != str(self.journal.path):
                raise
            raise self.damage_error("its state was removed while it was used") from exc

    def _refresh(self) -> None:
        try:
            self.journal.refresh()
        except JournalDamaged as exc:
            raise self.damage_error(f"its journal is damaged ({exc})") from exc
        except FileNotFoundError as exc:
            raise self.damage_error("its state was removed while it was used") from exc

    def _find_fault(self, call: str, subject: str) -> Fault | None:
        """Return the first fault that this call triggers, and count the call for every fault that matches."""
        faults = self.machine.scenario["faults"]
        if not any(fault["on"] == call for fault in faults):
            return None
        matching = list(match_faults(faults, call, subject, self.state.fault_hits))
        hits: list[JournalRecord] = [["hit", index] for index, _ in matching if index >= 0]
        if hits:
            with self.journal.locked():
                self.journal.append(hits)
        return next((fault for _, fault in matching if fault is not None), None)


class FaultInjected(Exception):
    """The scenario injects a fault into this call. Each port translates it into its own error."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


_Kind = TypeVar("_Kind", bound=type)


def serialize_calls(cls: _Kind) -> _Kind:
    """Make every public method of a class hold its host's lock (`Core.call_lock`) for the whole call."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _serialized(member))
    return cls


def _serialized(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def locked_call(self: Any, *args: Any, **named: Any) -> Any:
        with self._core.call_lock:
            return method(self, *args, **named)

    return locked_call

# SPDX-License-Identifier: Apache-2.0
"""A simulated host in a directory of its own, on which command lines run in this process, and what is true there.

Time that a command would sleep is skipped and counted, so a trial shows how long a person would have waited.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from unittest import mock

from tests.hosts import change_hardware
from vgpuctl.cli import entry
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.model.vm import VmRecord, VmState
from vgpuctl.sim.host import SimHost, open_host
from vgpuctl.sim.state import State


@dataclass
class Ran:
    """The result of one command line. `waited_seconds`: how long it would have slept."""

    words: tuple[str, ...]
    status: int
    out: str
    err: str
    waited_seconds: float

    @property
    def line(self) -> str:
        """The command line as a person types it."""
        return shlex.join(("vgpuctl", *self.words))

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout, or an empty one."""
        try:
            result: dict[str, Any] = json.loads(self.out)
        except ValueError:
            return {}
        return result

    @property
    def data(self) -> Any:
        """The data of a command that worked."""
        return self.document.get("data")

    @property
    def error(self) -> dict[str, Any]:
        """The error of a command that failed."""
        return dict(self.document.get("error") or {})


class _SkippedTime:
    """Time that passes at once: `sleep` only counts."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = Lock()
        self._monotonic = time.monotonic

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds

    def monotonic(self) -> float:
        return self._monotonic() + self.seconds


@contextmanager
def skipped_time() -> Iterator[_SkippedTime]:
    """Let `time.sleep` return at once, and `time.monotonic` show that the time has passed."""
    skipped = _SkippedTime()
    with mock.patch("time.sleep", skipped.sleep), mock.patch("time.monotonic", skipped.monotonic):
        yield skipped


@dataclass
class Site:
    """A simulated host below `directory`: its scenario file, its state, and the command lines that ran there."""

    directory: Path
    ran: list[Ran] = field(default_factory=list)

    @property
    def scenario(self) -> str:
        """The scenario file. Its path is part of the name of the state's directory."""
        return str(self.directory / "host.yaml")

    def run(self, *words: str) -> Ran:
        """Run a command line in this process, with --json and --yes, and remember it."""
        with (
            mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(self.directory / "state")}),
            skipped_time() as skipped,
            redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as out,
            redirect_stderr(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as err,
        ):
            status = entry.main(["--host", f"sim:{self.scenario}", "--yes", "--json", *words])
            texts = [_text(stream) for stream in (out, err)]
        self.ran.append(Ran(words, status, *texts, skipped.seconds))
        return self.ran[-1]

    def must(self, line: str) -> Ran:
        """Run a line that has to work."""
        result = self.run(*shlex.split(line))
        assert result.status == 0, f"{line}: {result.out} {result.err}"
        return result

    @contextmanager
    def opened(self) -> Iterator[SimHost]:
        """Open the simulator: what other programs do, and what is true."""
        with mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(self.directory / "state")}):
            host = open_host(self.scenario)
        try:
            yield host
        finally:
            host.close()

    def write(self, *records: object) -> None:
        """Change the host's state: what the kernel or another program does."""
        with self.opened() as host, host._core.journal.locked():
            host._core.journal.append([list(r) for r in records])  # type: ignore[call-overload]

    def swap(self, edit: Callable[[str], str]) -> None:
        """Boot the host with other hardware or another kernel: the same VMs, disks and files below /etc."""
        path = Path(self.scenario)
        with mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(self.directory / "state")}):
            change_hardware(path, edit(path.read_text()))

    def copy(self, directory: Path) -> Site:
        """Return this host in another directory. Its state is found there under that scenario's name."""
        shutil.copytree(self.directory, directory, symlinks=True)
        copied = Site(directory)
        before = directory / "state" / "vgpuctl" / self._state_name
        before.rename(before.with_name(copied._state_name))
        return copied

    @property
    def _state_name(self) -> str:
        with mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(self.directory / "state")}):
            from vgpuctl.sim.host import _read_source

            return _read_source(self.scenario)[2]


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


@dataclass(frozen=True)
class Truth:
    """What is so on a simulated host, whatever vgpuctl says."""

    state: State
    machine_id: str

    def power(self, uuid: str) -> str:
        """Return a domain's state in libvirt's words."""
        running = self.state.running.get(uuid)
        return running.state if running else "stopped"

    def record(self, name: str) -> VmRecord | None:
        """Return the record in a VM's definition."""
        uuid = self.state.uuids_by_name.get(name)
        if uuid is None:
            return None
        return parse_domain(self.state.domains[uuid].xml, VmState.STOPPED, self.machine_id).record

    def exists(self, carrier: str, backend: str | None = None) -> bool:
        """Say whether an mdev, a vGPU on a VF, or a plain function is there. `backend`: by default what its GPU has."""
        function = self.state.machine.functions.get(carrier)
        if function is None:
            return carrier in self.state.mdevs
        has_types = (backend or self.state.machine.gpus[function.gpu].backend) == "vendor-vf" and function.kind == "vf"
        return self.state.exists(carrier) and (not has_types or carrier in self.state.vf_types)

    def devices(self) -> set[str]:
        """Return every vGPU that exists."""
        return {*self.state.mdevs, *(c for c, t in self.state.vf_types.items() if t)}


def truth_of(site: Site) -> Truth:
    """Return what is true now."""
    with site.opened() as host:
        return Truth(host._core.read_state(), host.machine_id)

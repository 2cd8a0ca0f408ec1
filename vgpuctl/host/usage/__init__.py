# SPDX-License-Identifier: Apache-2.0
"""The use of the host's GPUs; implements `ports.devices.UsageReader`.

A process of its own (`child`) asks the drivers: one that hangs in the kernel cannot be ended, so it is left alone and
another one takes its place. It also runs makers' programs (`maker_tools`). `programs` asks programs of the operator,
whose values count instead of all but NVML's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any

from vgpuctl.host.usage.nvml_locks import changing
from vgpuctl.host.usage.processes import LineProcess
from vgpuctl.model.usage import NVML_SOURCE, ProcessUse, ReaderProgram, UsageSample, UsageTarget
from vgpuctl.value import replace

DEADLINE_SECONDS = 10.0
"""NVML reads 4,096 vGPUs in 7 s, if each call of the driver takes 0.4 ms."""
RETRY_SECONDS = 60.0
"""So long nothing is asked after a process did not answer, while that process still hangs."""
MAX_HUNG = 3
"""So many processes may hang in the kernel at once; then nothing is asked until one of them ends."""
MAX_ANSWER_BYTES = 64 << 20
_PROGRAM = (sys.executable, "-m", "vgpuctl.host.usage.child")


class HostUsage:
    """Reads the use of this host's GPUs. `run_dir`: where the locks are, the last argument of `program`."""

    def __init__(
        self, run_dir: Path, program: Sequence[str] = _PROGRAM, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        self._run_dir = run_dir
        self._program = program
        self._deadline = deadline_seconds
        self._lock = Lock()
        self._child: LineProcess | None = None
        self._hung: list[LineProcess] = []
        """Processes that were told to end; those of them that hang do not."""
        self._next_try = 0.0
        self._is_hanging = False
        self._number = 0

    def read(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        """Return the use of GPUs; a source that fails or is late is named in it."""
        from vgpuctl.host.usage.programs import run_programs  # slow to load, as what it imports
        from vgpuctl.model.result_reader import Mismatch, read_value

        began, start = time.time(), time.monotonic()
        rows = [[target.address, target.path, target.source] for target in targets]
        answer, problem = self._ask({"targets": rows}) if rows else (None, None)
        sample = UsageSample(began, 0.0)
        if answer is not None:
            try:
                sample = read_value(UsageSample, answer)
            except Mismatch as error:  # a child of another version, after an upgrade
                problem = str(error)
        if problem is not None:
            sources = {target.source for target in targets}
            failed = dict.fromkeys(sorted(sources), problem)
            sample = replace(sample, failed_sources=failed, nvml_hangs=self._is_hanging)
        known = frozenset(gpu.address for gpu in sample.gpus if gpu.source == NVML_SOURCE)
        gpus, vgpus, failed = run_programs(programs, known)
        read_by_program = {gpu.address for gpu in gpus}
        vgpus_by_program = {vgpu.gpu for vgpu in vgpus}
        return replace(
            sample,
            gpus=(*(gpu for gpu in sample.gpus if gpu.address not in read_by_program), *gpus),
            vgpus=(*(vgpu for vgpu in sample.vgpus if vgpu.gpu not in vgpus_by_program), *vgpus),
            failed_sources={**sample.failed_sources, **failed},
            duration_seconds=time.monotonic() - start,
        )

    def read_processes(self, gpu: str) -> tuple[ProcessUse, ...] | None:
        """Return the guests' processes that use a GPU; None where that is not known."""
        from vgpuctl.model.result_reader import Mismatch, read_value  # slow to load

        answer, _ = self._ask({"gpu": gpu})
        if answer is None:
            return None
        try:
            processes: tuple[ProcessUse, ...] = read_value(tuple[ProcessUse, ...], answer)
        except Mismatch:
            return None
        return processes

    def pause(self) -> AbstractContextManager[None]:
        """Keep the processes of all vgpuctls from opening NVML; a hung one is waited for only so long."""
        return changing(self._run_dir)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._drop_child()

    # ------------------------------------------------------------- the process

    def _ask(self, request: dict[str, Any]) -> tuple[Any, str | None]:
        """Return the process's answer, or why there is none."""
        with self._lock:
            self._hung = [child for child in self._hung if not child.has_ended]
            if len(self._hung) >= MAX_HUNG or (self._hung and time.monotonic() < self._next_try):
                return None, f"the driver hangs: process {self._hung[-1].pid} waits for it in the kernel"
            self._is_hanging = False
            self._number += 1
            line = json.dumps({"number": self._number, **request}).encode() + b"\n"
            try:
                self._child = self._child or LineProcess([*self._program, str(self._run_dir)])
                answer = self._child.ask(line, deadline_seconds=self._deadline, max_bytes=MAX_ANSWER_BYTES)
                document: dict[str, Any] = json.loads(answer)
                if document["number"] != self._number:
                    raise ValueError("it answered another request")
            except TimeoutError as error:
                self._drop_child()
                self._next_try, self._is_hanging = time.monotonic() + RETRY_SECONDS, True
                return None, f"{error}: the driver hangs"
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._drop_child()
                return None, f"the process that reads it ended: {error}"
            return document["answer"], None

    def _drop_child(self) -> None:
        """Begin with another process next time. This one ends now or, if it hangs in the kernel, never."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
            self._hung.append(child)

# SPDX-License-Identifier: Apache-2.0
"""The use of the host's GPUs; implements `ports.devices.UsageReader`.

A process of its own (`child`) asks the drivers: one that hangs in the kernel cannot be ended, so it is left alone and
another one takes its place. `programs` asks programs of the operator.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from vgpuctl.host.usage.nvml_locks import changing
from vgpuctl.host.usage.programs import run_programs
from vgpuctl.model.result_reader import Mismatch, read_value
from vgpuctl.model.usage import ProcessUse, ReaderProgram, UsageSample, UsageTarget
from vgpuctl.value import replace

DEADLINE_SECONDS = 10.0
"""NVML reads 4,096 vGPUs in 7 s, if each call of the driver takes 0.4 ms."""
RETRY_SECONDS = 60.0
"""So long nothing is asked after a process did not answer, while that process still hangs."""
MAX_HUNG = 3
"""So many processes may hang in the kernel at once; then nothing is asked until one of them ends."""
_MAX_ANSWER_BYTES = 64 << 20
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
        self._child: subprocess.Popen[bytes] | None = None
        self._hung: list[subprocess.Popen[bytes]] = []
        self._next_try = 0.0
        self._number = 0
        self._unread = b""

    def read(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        """Return the use of GPUs; a source that fails or is late is named in it."""
        began = time.time()
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
            sample = replace(sample, failed_sources=dict.fromkeys(sorted(sources), problem))
        gpus, vgpus, failed = run_programs(programs)
        return replace(
            sample,
            gpus=(*sample.gpus, *gpus),
            vgpus=(*sample.vgpus, *vgpus),
            failed_sources={**sample.failed_sources, **failed},
            duration_seconds=max(0.0, time.time() - began),
        )

    def read_processes(self, gpu: str) -> tuple[ProcessUse, ...] | None:
        """Return the guests' processes that use a GPU; None where that is not known."""
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
            self._hung = [child for child in self._hung if child.poll() is None]
            if len(self._hung) >= MAX_HUNG or (self._hung and time.monotonic() < self._next_try):
                return None, f"the driver hangs: process {self._hung[-1].pid} waits for it in the kernel"
            self._number += 1
            try:
                child = self._child or self._start()
                line = json.dumps({"number": self._number, **request}) + "\n"
                assert child.stdin is not None
                child.stdin.write(line.encode())
                child.stdin.flush()
                document = self._read_answer(child)
            except TimeoutError:
                return None, self._give_up()
            except (OSError, ValueError) as error:
                self._drop_child()
                return None, f"the process that reads it ended: {error}"
            return document["answer"], None

    def _start(self) -> subprocess.Popen[bytes]:
        self._unread = b""
        self._child = subprocess.Popen(  # noqa: S603 - a list and no shell
            [*self._program, str(self._run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        return self._child

    def _read_answer(self, child: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Return the answer to the last request.

        Raises:
            TimeoutError: it did not come in time.
            OSError, ValueError: the process has ended, or says something else.
        """
        assert child.stdout is not None
        deadline, file = time.monotonic() + self._deadline, child.stdout.fileno()
        while b"\n" not in self._unread:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([file], [], [], remaining)[0]:
                raise TimeoutError
            chunk = os.read(file, 1 << 20)
            if not chunk or len(self._unread) > _MAX_ANSWER_BYTES:
                raise OSError(f"status {child.wait()}" if not chunk else "its answer is too long")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        document: dict[str, Any] = json.loads(line)
        if document.get("number") != self._number:
            raise ValueError("it answered another request")
        return document

    def _give_up(self) -> str:
        """Leave the process alone: it hangs in the kernel, or is stopped. If it ever goes on, it ends."""
        child, self._child = self._child, None
        assert child is not None
        _close_pipes(child)
        child.kill()
        self._hung.append(child)
        self._next_try = time.monotonic() + RETRY_SECONDS
        return f"no answer within {self._deadline:g} s: the driver hangs"

    def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            _close_pipes(child)
            child.kill()
            with suppress(subprocess.TimeoutExpired):
                child.wait(1.0)


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()

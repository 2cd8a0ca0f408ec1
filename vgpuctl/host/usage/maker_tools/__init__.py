# SPDX-License-Identifier: Apache-2.0
"""Runs the makers' own programs that tell the use of their cards: a module for each, and a line in `TOOLS`.

A program is root's, in root's directories, and runs without input, in a session of its own, with a deadline for all its
runs of one reading. What it prints is checked as input from anybody. One that is not installed is no failure. One that
hangs is not started again before it has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from vgpuctl.host.trusted_path import require_trusted_program
from vgpuctl.host.usage.maker_tools import (
    amd_smi,
    cnmon,
    efsmi,
    hy_smi,
    ixsmi,
    kunlun_xpu_smi,
    mthreads_gmi,
    mx_smi,
    npu_smi,
)
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.host.usage.processes import LateProgram

TOOLS = (
    amd_smi.TOOL,
    cnmon.TOOL,
    efsmi.TOOL,
    hy_smi.TOOL,
    ixsmi.TOOL,
    kunlun_xpu_smi.TOOL,
    mthreads_gmi.TOOL,
    mx_smi.TOOL,
    npu_smi.TOOL,
)
DEADLINE_SECONDS = 6.0
"""For all runs of a program in one reading: less than the time that the whole process has."""
_MAX_TEXT = 200


class ToolRunner:
    """What is kept between two readings. `require_trusted`: checks a program's path."""

    def __init__(
        self,
        tools: Iterable[UsageTool] = TOOLS,
        *,
        require_trusted: Callable[[str], None] = require_trusted_program,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._require_trusted = require_trusted
        self._deadline = deadline_seconds
        self._late: dict[str, LateProgram] = {}

    def read(self, names: Iterable[str]) -> tuple[ToolReading, dict[str, str]]:
        """Run these programs at the same time; return what they told together, and why others told nothing, by name."""
        installed = [(tool, path) for tool, path in map(self._find, sorted(set(names))) if path is not None]
        if not installed:
            return ToolReading(), {}
        with ThreadPoolExecutor(len(installed)) as pool:
            results = list(pool.map(lambda pair: self._read_one(*pair), installed))
        readings = [result for result in results if isinstance(result, ToolReading)]
        failed = {
            tool.name: f"{path}: {result}"
            for (tool, path), result in zip(installed, results, strict=True)
            if isinstance(result, str)
        }
        gpus = tuple(gpu for reading in readings for gpu in reading.gpus)
        return ToolReading(gpus, tuple(vgpu for reading in readings for vgpu in reading.vgpus)), failed

    def _find(self, name: str) -> tuple[UsageTool, str | None]:
        tool = self._tools[name]
        return tool, next((path for path in tool.paths if os.access(path, os.X_OK)), None)

    def _read_one(self, tool: UsageTool, path: str) -> ToolReading | str:
        """Return what a program told, or why it told nothing."""
        late = self._late.get(tool.name)
        if late is not None and not late.has_ended:
            return f"it still hangs: process {late.pid}"
        try:
            self._require_trusted(path)
            reading = tool.read(ProgramRuns(path, self._deadline))
        except LateProgram as error:
            self._late[tool.name] = error
            return f"it did not end within {self._deadline:g} s"
        except Exception as error:  # noqa: BLE001 - whatever this program prints, NVML's values are not lost with it
            return " ".join(str(error).split())[:_MAX_TEXT] or type(error).__name__
        return reading if reading.gpus else "it prints no card with its PCI address in a form that vgpuctl knows"

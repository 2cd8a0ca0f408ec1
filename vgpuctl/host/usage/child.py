# SPDX-License-Identifier: Apache-2.0
"""The process that reads the use of GPUs: a call of NVML may hang in the kernel, and then its process cannot be ended.

    python -m vgpuctl.host.usage.child /run/vgpuctl

It answers each line of JSON on its input with one line, and ends with its input. The directory has the locks that keep
it from opening NVML while vgpuctl changes a GPU's layout.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from vgpuctl.host.nvml.library import load_pynvml
from vgpuctl.host.nvml.usage import NvmlUsage
from vgpuctl.host.usage.maker_tools import ToolRunner
from vgpuctl.host.usage.maker_tools.tool import ToolReading
from vgpuctl.host.usage.nvml_locks import reading
from vgpuctl.host.usage.sysfs_use import add_sysfs, read_gpu
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.usage import NVML_SOURCE, SYSFS_SOURCE, GpuUse, UsageSample, VgpuUse


def main() -> int:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its parent's
    reader = UsageProcess(Path(sys.argv[1]), ToolRunner())
    for line in sys.stdin:
        request = json.loads(line)
        answer: object
        if "gpu" in request:
            answer = reader.read_processes(request["gpu"])
        else:
            answer = reader.read([tuple(target) for target in request["targets"]])
        document = {"number": request["number"], "answer": to_json_value(answer)}
        sys.stdout.write(json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")
        sys.stdout.flush()
    return 0


class UsageProcess:
    """What the process keeps between two requests. `run_dir`: see the module; `tools`: programs of other makers."""

    def __init__(self, run_dir: Path, tools: ToolRunner) -> None:
        self._run_dir = run_dir
        self._nvml = NvmlUsage(time.monotonic)
        self._tools = tools

    def read(self, targets: list[tuple[str, str, str]]) -> UsageSample:
        """Return the use of GPUs, each an address, its directory in sysfs, and its source."""
        began, start = time.time(), time.monotonic()
        failed: dict[str, str] = {}
        gpus: list[GpuUse] = []
        vgpus: list[VgpuUse] = []
        addresses = tuple(address for address, _, source in targets if source == NVML_SOURCE)
        driver, is_paused = None, False
        if addresses:
            try:
                with reading(self._run_dir) as is_free:
                    is_paused = not is_free
                    if is_free:
                        driver, gpus, vgpus = self._nvml.read(load_pynvml(), addresses)
            except Exception as error:  # noqa: BLE001 - pynvml's errors have no common base before it is loaded
                failed[NVML_SOURCE] = _one_line(error)
        others, other_vgpus, problems = self._read_others([target for target in targets if target[2] != NVML_SOURCE])
        failed |= problems
        duration = time.monotonic() - start
        return UsageSample(
            began, duration, (*gpus, *others), (*vgpus, *other_vgpus), driver, failed, nvml_paused=is_paused
        )

    def _read_others(self, targets: list[tuple[str, str, str]]) -> tuple[list[GpuUse], list[VgpuUse], dict[str, str]]:
        """Return the use of GPUs that NVML does not know: as their maker's program tells it, the rest from sysfs."""
        result, failed = self._run_tools(sorted({source for _, _, source in targets} - {SYSFS_SOURCE}))
        uses = {use.address: use for use in result.gpus}
        gpus: list[GpuUse] = []
        for address, path, _ in targets:
            try:
                gpus.append(add_sysfs(uses.get(address), read_gpu(address, path)))
            except OSError as error:
                failed[SYSFS_SOURCE] = f"{address}: {error.strerror}"
        present = {gpu.address for gpu in gpus}
        return gpus, [vgpu for vgpu in result.vgpus if vgpu.gpu in present], failed

    def _run_tools(self, names: list[str]) -> tuple[ToolReading, dict[str, str]]:
        """Run makers' programs; none while a GPU's layout is changed: they keep the driver from being unloaded, too."""
        if not names:
            return ToolReading(), {}
        try:
            with reading(self._run_dir) as is_free:
                return self._tools.read(names) if is_free else (ToolReading(), {})
        except OSError as error:
            return ToolReading(), dict.fromkeys(names, _one_line(error))

    def read_processes(self, gpu: str) -> object:
        """Return the guests' processes on a GPU; None where NVML does not report them."""
        try:
            with reading(self._run_dir) as is_free:
                return self._nvml.read_processes(load_pynvml(), gpu) if is_free else None
        except Exception:  # noqa: BLE001 - as above; NVML does not report them
            return None


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Restores 8 GPUs with 16 VFs and 4 vGPUs each after a boot: MIG, mixed sizes, schedulers and the vGPUs.

Every call that makes the driver work takes a driver's time. Two of these times were measured with substitute
drivers: enabling VFs (7 VFs of an emulated igb: `VFS_SECONDS`) and creating a vGPU (`DRIVER_SECONDS`, slow_driver.py).
No vendor and no measurement says how long it takes to switch MIG mode or to create a GPU instance. Only the timeouts of
other programs are known, and they are minutes. The values here are small, so that vgpuctl's own time is visible. The
test assumes that mixed sizes and schedulers cost the driver nothing.

All other times are CPU seconds. The simulator's own computation belongs neither to vgpuctl nor to the driver. The test
measures it at the ports, reports it separately, and also prints the ratio that includes it. A real kernel takes time to
answer too, but only microseconds.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.conftest import Tell
from tests.bench.paired import runs
from tests.bench.test_restore import DRIVER_SECONDS, RATIO_LIMIT, boot
from tests.hosts import SimulatedHost, context, create, open_sim_host, request
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.operations.apply import apply_host
from vgpuctl.operations.desired_state import HostFileText, read_desired_state
from vgpuctl.operations.restore import restore_host
from vgpuctl.value import replace

VFS_SECONDS, MIG_SECONDS, INSTANCE_SECONDS = 0.5, 0.2, 0.1
GPUS, VGPUS = 8, 32
HOST = """version: 1
kernel: 6.8.0-45-generic
nvidia: {driver: "580.105.06"}
storage: {filesystem_gib: 10000, pools: [{name: default}]}
gpus:
  - {model: H100, count: 3, vfs: {total: 16, enabled: 0}}
  - {model: RTX PRO 6000, count: 2, vfs: {total: 16, enabled: 0}}
  - {model: L40S, count: 3, vfs: {total: 16, enabled: 0}}
"""
SPEC = """version: 1
gpus:
  H100: {mode: vgpu, mig: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]}
  NVIDIA RTX PRO 6000 Blackwell Server Edition:
    mode: vgpu
    mig: [1g.24gb+gfx, 1g.24gb+gfx, 1g.24gb+gfx, 1g.24gb+gfx]
    scheduler: {policy: equal_share}
  L40S: {mode: vgpu, mixed_size: true, scheduler: {policy: equal_share}}
"""
WANTED = {
    "H100": ("H100-1-10C",) * 4,
    "RTX": ("DC-1-24Q",) * 4,
    "L40S": ("L40S-16Q", "L40S-8Q", "L40S-4Q", "L40S-2Q"),
}
"""The vGPUs on each GPU, by a word in its model name."""


class Driver:
    """Watches the calls of a port. `waited`: seconds for the driver. `answered`: the simulator's own CPU seconds."""

    def __init__(self) -> None:
        self.waited = self.answered = 0.0
        self.calls: Counter[str] = Counter()

    def watch(self, port: Any) -> Any:
        """Return a wrapper that watches the port's calls."""
        return _Watched(port, self)

    def call(self, name: str, method: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Let the simulator run the call; then wait as long as the driver takes."""
        started = time.process_time()
        try:
            return method(*args, **keywords)
        finally:
            self.answered += time.process_time() - started
            self.wait(name, _seconds(name, args))

    def wait(self, name: str, seconds: float) -> None:
        """Wait this long for a call."""
        if seconds:
            self.calls[name] += 1
            started = time.perf_counter()
            time.sleep(seconds)
            self.waited += time.perf_counter() - started


class _Watched:
    def __init__(self, port: Any, driver: Driver) -> None:
        self._port, self._driver = port, driver

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        return lambda *args, **keywords: self._driver.call(name, method, args, keywords)


def _seconds(name: str, args: tuple[Any, ...]) -> float:
    """Return how long the driver takes for a call."""
    if name in ("write", "write_uninterruptible"):
        return DRIVER_SECONDS if args[0].endswith("/current_vgpu_type") else 0.0
    return {"sriov_manage": VFS_SECONDS, "set_mig": MIG_SECONDS, "create_gpu_instance": INSTANCE_SECONDS}.get(name, 0.0)


def test_overhead_of_a_partitioned_restore_over_the_drivers_time(tmp_path: Path, bench: Tell) -> None:
    host = open_sim_host(tmp_path, text=HOST)
    apply_host(host.ports, context(), read_desired_state(host.ports, HostFileText(SPEC, "FILE"), ()), drain=False)
    for address, gpu in host.sim._core.read_state().machine.gpus.items():
        for number, profile in enumerate(next(vgpus for word, vgpus in WANTED.items() if word in gpu.model)):
            vm = request(profile, name=f"vm-{address[5:7]}-{number}", gpu=address)
            create(host.ports, vm, start=False)
    expected = gpu_states(host)
    assert [len(vgpus) for _, _, vgpus, _, _ in expected.values()] == [VGPUS // GPUS] * GPUS
    whole, waited, answered, worked = [], [], [], []
    for _ in range(runs(1, 5)):
        booted = boot(host)
        assert not any(vgpus or instances for _, instances, vgpus, _, _ in gpu_states(booted).values())
        driver = Driver()
        watched = ("sysfs", "nvml", "vendor_commands", "system_log")
        ports = {name: driver.watch(getattr(booted.ports, name)) for name in watched}
        started, cpu_before = time.perf_counter(), time.process_time()
        restore_host(
            replace(booted.ports, **ports), context(wait_seconds=60), parse_host_spec(SPEC, "host.yaml"))  # fmt: skip
        whole.append(time.perf_counter() - started)
        worked.append(time.process_time() - cpu_before - driver.answered)
        waited.append(driver.waited)
        answered.append(driver.answered)
        assert gpu_states(booted) == expected
        assert driver.calls == {"sriov_manage": GPUS, "set_mig": 5, "create_gpu_instance": 20, "write": VGPUS}
    ratio = statistics.median((wait + work) / wait for wait, work in zip(waited, worked, strict=True))
    clock = statistics.median(a / b for a, b in zip(whole, waited, strict=True))
    details = f"{statistics.median(waited):.2f} s of the driver's, {statistics.median(worked):.2f} s of CPU; "
    details += f"with {statistics.median(answered):.2f} s that the simulator computed, by the clock, {clock:.2f}; "
    bench(f"restore of {GPUS} GPUs with MIG, mixed sizes and schedulers, and {VGPUS} vGPUs", ratio, RATIO_LIMIT,
          f"{details}{len(whole)} runs")  # fmt: skip


def gpu_states(host: SimulatedHost) -> dict[str, tuple[Any, ...]]:
    """Return each GPU's VFs, GPU instances, vGPUs, mixed-size mode and schedulers."""
    state = host.sim._core.read_state()
    result = {}
    for address in state.machine.gpus:
        gpu = host.sim.nvml.gpu(address)
        assert gpu is not None
        instances = () if gpu.mig is None else gpu.mig.instances
        vgpus = {vf: kind for vf, kind in state.vf_types.items() if state.machine.functions[vf].gpu == address}
        schedulers = (gpu.scheduler.state if gpu.scheduler is not None else None, gpu.gi_schedulers)
        result[address] = (state.vfs[address], instances, vgpus, gpu.mixed_size, schedulers)
    return result

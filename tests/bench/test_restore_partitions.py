# SPDX-License-Identifier: Apache-2.0
"""Restoring a host of 8 GPUs with 16 VFs and 4 vGPUs each after a boot: MIG, mixed sizes, schedulers and the vGPUs.

Every call that makes the driver work takes a driver's time. Of these times two are those of stand-ins: turning VFs on
(7 VFs of an emulated igb: `VFS_SECONDS`) and a vGPU (`DRIVER_SECONDS`, see test_restore.py). No maker and no
measurement tells how long MIG's mode and a GPU instance take; what is known are other programs' budgets, of minutes.
Those here are small, so that ours shows; mixed sizes and schedulers are taken to cost the driver nothing.

Seconds beside the driver's are of CPU. What the simulator computes to answer is neither ours nor the driver's: it is
measured at the ports and told apart, and the ratio with it is printed too. A real kernel takes time for its answers
also, but microseconds.
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
from tests.hosts import Silent, SimulatedHost, create, open_sim_host, request, yes
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.engine.apply import apply_host
from vgpuctl.engine.desired_state import HostFileText, read_desired_state
from vgpuctl.engine.host_plan import ApplyOptions
from vgpuctl.engine.restore import restore_host
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
"""What is made on each GPU, by a word of its model."""


class Driver:
    """Watches the calls of a port: `waited` seconds for the driver, `answered` seconds of the simulator's own CPU."""

    def __init__(self) -> None:
        self.waited = self.answered = 0.0
        self.calls: Counter[str] = Counter()

    def watch(self, port: Any) -> Any:
        """Return the port with its calls watched."""
        return _Watched(port, self)

    def call(self, name: str, does: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Let the simulator do it, and take the driver's time."""
        begun = time.process_time()
        try:
            return does(*args, **named)
        finally:
            self.answered += time.process_time() - begun
            self.wait(name, _seconds(name, args))

    def wait(self, name: str, seconds: float) -> None:
        """Take this time for a call."""
        if seconds:
            self.calls[name] += 1
            begun = time.perf_counter()
            time.sleep(seconds)
            self.waited += time.perf_counter() - begun


class _Watched:
    def __init__(self, port: Any, driver: Driver) -> None:
        self._seam, self._driver = port, driver

    def __getattr__(self, name: str) -> Any:
        does = getattr(self._seam, name)
        return lambda *args, **named: self._driver.call(name, does, args, named)


def _seconds(name: str, args: tuple[Any, ...]) -> float:
    """Return how long the driver takes for a call."""
    if name in ("write", "write_uninterruptible"):
        return DRIVER_SECONDS if args[0].endswith("/current_vgpu_type") else 0.0
    return {"sriov_manage": VFS_SECONDS, "set_mig": MIG_SECONDS, "create_gpu_instance": INSTANCE_SECONDS}.get(name, 0.0)


def test_overhead_of_a_partitioned_restore_over_the_drivers_time(tmp_path: Path, bench: Tell) -> None:
    host = open_sim_host(tmp_path, text=HOST)
    apply_host(
        host.ports,
        read_desired_state(host.ports, HostFileText(SPEC, "FILE"), ()),
        ApplyOptions(),
        dry_run=False,
        confirm=yes,
        progress=Silent(),
    )
    for address, gpu in host.sim._core.read_state().machine.gpus.items():
        for number, profile in enumerate(next(made for word, made in WANTED.items() if word in gpu.model)):
            vm = request(profile, name=f"vm-{address[5:7]}-{number}", gpu=address)
            create(host.ports, vm, start=False)
    wanted = stand(host)
    assert [len(made) for _, _, made, _, _ in wanted.values()] == [VGPUS // GPUS] * GPUS
    whole, waited, answered, worked = [], [], [], []
    for _ in range(runs(1, 5)):
        booted = boot(host)
        assert not any(made or instances for _, instances, made, _, _ in stand(booted).values())
        driver = Driver()
        watched = ("sysfs", "nvml", "vendor_commands", "system_log")
        ports = {name: driver.watch(getattr(booted.ports, name)) for name in watched}
        begun, busy = time.perf_counter(), time.process_time()
        restore_host(
            replace(booted.ports, **ports), parse_host_spec(SPEC, "host.yaml"),
            dry_run=False, wait_seconds=60, progress=Silent(),
        )  # fmt: skip
        whole.append(time.perf_counter() - begun)
        worked.append(time.process_time() - busy - driver.answered)
        waited.append(driver.waited)
        answered.append(driver.answered)
        assert stand(booted) == wanted
        assert driver.calls == {"sriov_manage": GPUS, "set_mig": 5, "create_gpu_instance": 20, "write": VGPUS}
    ratio = statistics.median((wait + work) / wait for wait, work in zip(waited, worked, strict=True))
    clock = statistics.median(a / b for a, b in zip(whole, waited, strict=True))
    details = f"{statistics.median(waited):.2f} s of the driver's, {statistics.median(worked):.2f} s of CPU; "
    details += f"with {statistics.median(answered):.2f} s that the simulator computed, by the clock, {clock:.2f}; "
    bench(f"restore of {GPUS} GPUs with MIG, mixed sizes and schedulers, and {VGPUS} vGPUs", ratio, RATIO_LIMIT,
          f"{details}{len(whole)} runs")  # fmt: skip


def stand(host: SimulatedHost) -> dict[str, tuple[Any, ...]]:
    """What each GPU is set up for: VFs, instances, vGPUs, mixed sizes, and its schedulers."""
    state = host.sim._core.read_state()
    found = {}
    for address in state.machine.gpus:
        seen = host.sim.nvml.gpu(address)
        assert seen is not None
        instances = () if seen.mig is None else seen.mig.instances
        made = {vf: kind for vf, kind in state.vf_types.items() if state.machine.functions[vf].gpu == address}
        schedulers = (seen.scheduler.state if seen.scheduler is not None else None, seen.gi_schedulers)
        found[address] = (state.vfs[address], instances, made, seen.mixed_size, schedulers)
    return found

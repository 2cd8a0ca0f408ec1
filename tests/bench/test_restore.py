"""Restores 64 vGPUs after a boot on a simulated host, compared with the bare sysfs writes and with a driver's time.

The simulated kernel takes no time to create a vGPU, so the first test's ratio shows all of vgpuctl's overhead. The test
also prints the overhead per vGPU. If a driver takes more than twenty times as long, vgpuctl adds less than 5 %. The
times are CPU seconds: nothing waits, and a busy machine has no effect.

In the second test, each write that creates a vGPU takes as long as a driver's; see `slow_driver`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench.conftest import Tell
from tests.bench.paired import paired, runs
from tests.bench.slow_driver import DRIVER_SECONDS, SlowDriver
from tests.hosts import SimulatedHost, context, create, open_sim_host, request
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.operations.restore import restore_host
from vgpuctl.value import replace

VGPUS = 64
RATIO_LIMIT, ADDED_LIMIT_MS = 1.05, 10.0
SPEC = parse_host_spec("version: 1\n", "host.yaml")


def test_overhead_of_a_restore_over_the_kernels_time(tmp_path: Path, bench: Tell) -> None:
    host = open_sim_host(tmp_path, "l40s-x4")
    for number in range(VGPUS):
        create(host.ports, request("L40S-1Q", name=f"vm-{number:02}"), start=False)
    expected = types(host)
    assert len(expected) == VGPUS

    def bare() -> float:
        booted = boot(host)
        started = time.process_time()
        for vf, number in expected.items():
            booted.ports.sysfs.write(f"/sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type", f"{number}\n")
        elapsed = time.process_time() - started
        assert types(booted) == expected
        return elapsed

    def ours() -> float:
        booted = boot(host)
        started = time.process_time()
        restore_host(booted.ports, context(wait_seconds=60), SPEC)
        elapsed = time.process_time() - started
        assert types(booted) == expected
        return elapsed

    pair = paired(ours, bare, runs(2, 9))
    added = [(a - b) * 1000 / VGPUS for a, b in zip(pair.ours, pair.theirs, strict=True)]
    ratio = statistics.median(pair.ours) / statistics.median(pair.theirs)
    bench(f"restore of {VGPUS} vGPUs, of their writes into a kernel that takes no time", ratio, RATIO_LIMIT,
          pair.medians())  # fmt: skip
    median_added = statistics.median(added)
    details = f"at most 5 % from {median_added * 20:.0f} ms of the driver's own for each, {len(added)} runs"
    bench(f"restore of {VGPUS} vGPUs adds to each", median_added, ADDED_LIMIT_MS, details, " ms")


def test_overhead_of_a_restore_over_the_drivers_time(tmp_path: Path, bench: Tell) -> None:
    host = open_sim_host(tmp_path, "l40s-x4")
    for number in range(VGPUS):
        create(host.ports, request("L40S-1Q", name=f"vm-{number:02}"), start=False)
    expected = types(host)
    whole, waited, worked = [], [], []
    for _ in range(runs(1, 5)):
        booted = boot(host)
        driver = SlowDriver(booted.ports.sysfs)
        started, cpu_before = time.perf_counter(), time.process_time()
        restore_host(replace(booted.ports, sysfs=driver), context(wait_seconds=60), SPEC)
        whole.append(time.perf_counter() - started)
        worked.append(time.process_time() - cpu_before)
        waited.append(driver.waited)
        assert types(booted) == expected
        assert driver.waited >= VGPUS * DRIVER_SECONDS, "each vGPU was made by the slow driver"
    ratio = statistics.median((wait + work) / wait for wait, work in zip(waited, worked, strict=True))
    clock = statistics.median(a / b for a, b in zip(whole, waited, strict=True))
    details = f"{statistics.median(waited):.2f} s of the driver's, {statistics.median(worked):.2f} s of CPU; "
    details += f"by the clock of this machine, with all else that runs on it, {clock:.2f}; {len(whole)} runs"
    name = f"restore of {VGPUS} vGPUs, of a driver's {DRIVER_SECONDS * 1000:.0f} ms for each"
    bench(name, ratio, RATIO_LIMIT, details)


def types(host: SimulatedHost) -> dict[str, int]:
    """Return the vGPU type on each VF."""
    return dict(host.sim._core.read_state().vf_types)


def boot(host: SimulatedHost) -> SimulatedHost:
    """Reboot the host; its vGPUs are gone."""
    host.sim.reboot()
    return host.again()

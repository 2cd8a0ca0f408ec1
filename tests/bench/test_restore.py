"""Restoring 64 vGPUs after a boot on a simulated host: beside the same sysfs writes made bare, and a driver's time.

The simulated kernel takes no time to make a vGPU, so the first ratio has nothing to hide in; what a vGPU costs beside
the driver's own time is printed as well: twenty times that is the driver's time from which on we add less than 5 %.
Seconds are of CPU: nothing is waited for, and a busy machine does not count.

In the second one each write that makes a vGPU takes as long as a driver's, see `slow_driver`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench.conftest import Tell
from tests.bench.paired import paired, runs
from tests.bench.slow_driver import DRIVER_SECONDS, SlowDriver
from tests.hosts import Silent, SimulatedHost, create, open_sim_host, request
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.engine.restore import restore_host
from vgpuctl.value import replace

VGPUS = 64
RATIO_LIMIT, ADDED_LIMIT_MS = 1.05, 10.0
SPEC = parse_host_spec("version: 1\n", "host.yaml")


def test_what_a_restore_adds_to_the_kernels_own_time(tmp_path: Path, bench: Tell) -> None:
    host = open_sim_host(tmp_path, "l40s-x4")
    for number in range(VGPUS):
        create(host.ports, request("L40S-1Q", name=f"vm-{number:02}"), start=False)
    wanted = types(host)
    assert len(wanted) == VGPUS

    def bare() -> float:
        booted = boot(host)
        begun = time.process_time()
        for vf, number in wanted.items():
            booted.ports.sysfs.write(f"/sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type", f"{number}\n")
        took = time.process_time() - begun
        assert types(booted) == wanted
        return took

    def ours() -> float:
        booted = boot(host)
        begun = time.process_time()
        restore_host(booted.ports, SPEC, dry_run=False, wait_seconds=60, progress=Silent())
        took = time.process_time() - begun
        assert types(booted) == wanted
        return took

    pair = paired(ours, bare, runs(2, 9))
    added = [(a - b) * 1000 / VGPUS for a, b in zip(pair.ours, pair.theirs, strict=True)]
    ratio = statistics.median(pair.ours) / statistics.median(pair.theirs)
    bench(f"restore of {VGPUS} vGPUs, of their writes into a kernel that takes no time", ratio, RATIO_LIMIT,
          pair.medians())  # fmt: skip
    value = statistics.median(added)
    details = f"at most 5 % from {value * 20:.0f} ms of the driver's own for each, {len(added)} runs"
    bench(f"restore of {VGPUS} vGPUs adds to each", value, ADDED_LIMIT_MS, details, " ms")


def test_overhead_of_a_restore_over_the_drivers_time(tmp_path: Path, bench: Tell) -> None:
    host = open_sim_host(tmp_path, "l40s-x4")
    for number in range(VGPUS):
        create(host.ports, request("L40S-1Q", name=f"vm-{number:02}"), start=False)
    wanted = types(host)
    whole, waited, worked = [], [], []
    for _ in range(runs(1, 5)):
        booted = boot(host)
        driver = SlowDriver(booted.ports.sysfs)
        begun, busy = time.perf_counter(), time.process_time()
        restore_host(replace(booted.ports, sysfs=driver), SPEC, dry_run=False, wait_seconds=60, progress=Silent())
        whole.append(time.perf_counter() - begun)
        worked.append(time.process_time() - busy)
        waited.append(driver.waited)
        assert types(booted) == wanted
        assert driver.waited >= VGPUS * DRIVER_SECONDS, "each vGPU was made by the slow driver"
    ratio = statistics.median((wait + work) / wait for wait, work in zip(waited, worked, strict=True))
    clock = statistics.median(a / b for a, b in zip(whole, waited, strict=True))
    details = f"{statistics.median(waited):.2f} s of the driver's, {statistics.median(worked):.2f} s of CPU; "
    details += f"by the clock of this machine, with all else that runs on it, {clock:.2f}; {len(whole)} runs"
    name = f"restore of {VGPUS} vGPUs, of a driver's {DRIVER_SECONDS * 1000:.0f} ms for each"
    bench(name, ratio, RATIO_LIMIT, details)


def types(host: SimulatedHost) -> dict[str, int]:
    """What each VF carries."""
    return dict(host.sim._core.read_state().vf_types)


def boot(host: SimulatedHost) -> SimulatedHost:
    """Turn it off and on; the devices are gone."""
    host.sim.reboot()
    return host.again()

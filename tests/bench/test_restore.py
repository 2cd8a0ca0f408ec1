"""Restoring 64 vGPUs after a boot on a simulated host, beside the same sysfs writes made bare.

The simulated kernel takes no time to make a vGPU, so the ratio has nothing to hide in; what a vGPU costs beside the
driver's own time is printed as well: twenty times that is the driver's time from which on we add less than 5 %.
Seconds are of CPU: nothing is waited for, and a busy machine does not count.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench.conftest import Tell
from tests.bench.paired import paired, runs
from tests.worlds import Host, Silent, create, open_host, wish
from vgpuctl.engine.restore import restore_host
from vgpuctl.spec.host import parse_host_spec

VGPUS = 64
RATIO_LIMIT, ADDED_LIMIT_MS = 1.05, 10.0
SPEC = parse_host_spec("version: 1\n", "host.yaml")


def test_what_a_restore_adds_to_the_kernels_own_time(tmp_path: Path, bench: Tell) -> None:
    host = open_host(tmp_path, "l40s-x4")
    for number in range(VGPUS):
        create(host.world, wish("L40S-1Q", name=f"vm-{number:02}"), start=False)
    wanted = types(host)
    assert len(wanted) == VGPUS

    def bare() -> float:
        booted = boot(host)
        begun = time.process_time()
        for vf, number in wanted.items():
            booted.world.sysfs.write(f"/sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type", f"{number}\n")
        took = time.process_time() - begun
        assert types(booted) == wanted
        return took

    def ours() -> float:
        booted = boot(host)
        begun = time.process_time()
        restore_host(booted.world, SPEC, dry_run=False, wait_seconds=60, progress=Silent())
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


def types(host: Host) -> dict[str, int]:
    """What each VF carries."""
    return dict(host.sim._core.look().types)


def boot(host: Host) -> Host:
    """Turn it off and on; the devices are gone."""
    host.sim.reboot()
    return host.again()

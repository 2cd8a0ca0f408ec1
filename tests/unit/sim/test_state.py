# SPDX-License-Identifier: Apache-2.0
"""The replay is the state: for any operations, live, replayed and compacted states are equal."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.sim.hosts import GPU, MDEV, PCI, PF, domain_xml, mdev_device, pci_device, remove, uuid, vf
from vgpuctl.errors import Stuck, VgpuctlError
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.sim import SimHost, open_host
from vgpuctl.sim.state import State

SCENARIO = """
version: 1
gpus:
  - {model: A100}
  - {model: A16, backend: mdev-vf, configurable: true, vfs: {total: 4, enabled: 2}}
  - {model: mtty}
  - {model: RTX 4090}
  - {model: Flex 170, vfs: {total: 4, enabled: 2}}
  - {model: H100, mig: [3g.40gb, 1g.10gb]}
  - {model: RTX PRO 6000, vfs: {total: 4}, mig: [1g.24gb+gfx, 1g.24gb+gfx]}
nvidia: {driver: "590.1"}
storage: {pools: [{name: default}]}
faults:
  - {on: start, match: "vm-2", nth: 2}
  - {on: sysfs-write, match: "*/create", errno: EIO, times: 1}
"""
A16, RTX, FLEX = "0000:3f:00.0", "0000:43:00.0", "0000:47:00.0"
H100, BLACKWELL = "0000:4b:00.0", "0000:4f:00.0"
NUMBERS = st.integers(0, 4)
KINDS = """
type clear params create mtty remove numvfs flexvfs unbind probe override define start stop kill undefine promise
volume unvolume pool boot gischeduler mig instance uninstance mixed cycle place
"""


def contents(state: State) -> dict[str, Any]:
    """Everything a state holds, the machine and the change counter aside."""
    names = {field.name for field in fields(state)} - {"machine", "generation"}
    return {name: getattr(state, name) for name in names}


def operations() -> st.SearchStrategy[list[tuple[str, int, int]]]:
    return st.lists(st.tuples(st.sampled_from(KINDS.split()), NUMBERS, NUMBERS), max_size=40)


def device(number: int, other: int) -> str:
    return (
        pci_device(f"0000:3b:00.{4 + other % 4}", managed=False),
        mdev_device(uuid(other)),
        pci_device(RTX, managed=False),
        pci_device(f"0000:47:00.{4 + other % 4}", managed=True),
        pci_device(A16, managed=True),
    )[number]


def act(host: SimHost, kind: str, a: int, b: int) -> None:  # noqa: C901
    """Do one operation; refusals by the host are expected."""
    write, libvirt = host.sysfs.write, host.hypervisor
    match kind:
        case "type":
            write(f"{vf(a)}/nvidia/current_vgpu_type", ("468", "469", "468", "999", "x")[b])
        case "clear":
            remove(host, f"{vf(a)}/nvidia/current_vgpu_type", "0")
        case "params":
            write(f"{vf(a)}/nvidia/vgpu_params", f"k={b}")
        case "create":
            write(f"{PCI}/{A16}/virtfn{a}/mdev_supported_types/nvidia-71{b}/create", uuid(b))
        case "mtty":
            write(f"/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-{1 + b % 2}/create", uuid(b))
        case "remove":
            remove(host, f"{MDEV}/{uuid(b)}/remove")
        case "numvfs":
            remove(host, f"{PCI}/{A16}/sriov_numvfs", str(b))
        case "flexvfs":
            remove(host, f"{PCI}/{FLEX}/sriov_numvfs", str(b))
        case "unbind":
            address = (GPU, A16, RTX, FLEX, "0000:3b:00.4")[a]
            remove(host, f"{PCI}/{address}/driver/unbind", address)
        case "probe":
            write("/sys/bus/pci/drivers_probe", (GPU, A16, RTX, FLEX, "0000:3b:00.4")[a])
        case "override":
            write(f"{PCI}/{(GPU, A16, RTX, FLEX, '0000:3b:00.4')[a]}/driver_override", ("", "vfio-pci")[b % 2])
        case "volume":
            host.storage.create_volume("default", f"disk-{b}", 1 << 30)
        case "unvolume":
            host.storage.remove_volume("default", f"disk-{b}")
        case "pool":
            (host.storage.remove_pool if b % 2 else host.storage.start_pool)(f"pool-{a}")
            host.storage.create_pool(f"pool-{a}", f"/pool/{a}")
        case "boot":
            if a == b:
                host.reboot()
        case "mig":
            host.nvml.set_mig(H100, enabled=bool(b % 2))
        case "instance":
            host.nvml.create_gpu_instance(H100, (19, 15, 14, 9, 20)[a], b)
        case "uninstance":
            host.nvml.destroy_gpu_instance(H100, (1, 7, 8, 3, 0)[b])
        case "gischeduler":
            host.nvml.set_scheduler(
                BLACKWELL, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, None, 100 * (1 + b)), 3 + a % 2
            )
        case "mixed":
            host.nvml.set_mixed_size((GPU, H100)[a % 2], enabled=b > 1)
        case "cycle":
            host.vendor.sriov_manage(("-d", "-e")[b % 2], (GPU, H100)[a % 2], deadline_seconds=1)
        case "place":
            write(f"{PCI}/{H100}/virtfn{a}/nvidia/current_vgpu_type", ("821", "823", "813", "815", "0")[b])
            write(f"{PCI}/{H100}/virtfn{a}/nvidia/gpu_instance_id", str(7 + b))
        case "define":
            libvirt.define(domain_xml(f"vm-{a}", a, device(b, a)))
        case "start":
            libvirt.start(uuid(a))
        case "stop":
            libvirt.shutdown(uuid(a))
        case "kill":
            libvirt.destroy(uuid(a))
        case "undefine":
            libvirt.undefine(uuid(a))
        case "promise":
            libvirt.set_record(uuid(a), f"<v:p xmlns:v='urn:vgpuctl:1' n='{b}'>é{'x' * b}</v:p>" if b else None)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations())
def test_replay_and_compaction_give_the_live_state(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "host.yaml")
        file.write_text(SCENARIO)
        host = open_host(str(file), state_dir=Path(directory, "state"))
        watcher = open_host(str(file), state_dir=Path(directory, "state"))
        for kind, a, b in steps:
            try:
                act(host, kind, a, b)
            except (OSError, VgpuctlError, Stuck):
                continue
        live = contents(host._core.read_state())
        assert contents(watcher._core.read_state()) == live
        replayed = open_host(str(file), state_dir=Path(directory, "state"))
        assert contents(replayed._core.read_state()) == live
        fresh = State(host._core.machine)
        fresh.apply(host._core.state.records())
        assert contents(fresh) == live
        for ports in (host, watcher, replayed):
            ports.close()


def test_the_game_reaches_every_kind_of_record(make) -> None:
    """A guard for the property above: its operations do succeed."""
    host = make(SCENARIO.removeprefix("\nversion: 1\n"))
    script = [
        ("type", 0, 0), ("params", 0, 1), ("create", 0, 3), ("create", 0, 3), ("mtty", 0, 2), ("define", 0, 0),
        ("start", 0, 0), ("define", 3, 1), ("start", 3, 0), ("remove", 0, 3), ("stop", 3, 0), ("volume", 0, 1),
        ("pool", 1, 1), ("override", 3, 1), ("unbind", 3, 0), ("probe", 3, 0), ("flexvfs", 0, 0), ("promise", 0, 2),
        ("place", 0, 0), ("instance", 0, 4), ("gischeduler", 0, 0), ("uninstance", 0, 0), ("cycle", 1, 0),
        ("mig", 0, 0), ("cycle", 1, 1), ("mixed", 1, 2),
    ]  # fmt: skip
    done = 0
    for kind, a, b in script:
        try:
            act(host, kind, a, b)
            done += 1
        except (OSError, VgpuctlError):
            continue
    names = {record[0] for line in _lines(host) for record in line}
    assert {"type", "params", "mdev", "unmdev", "park", "unpark", "domain", "run", "off", "splice", "splice_live",
            "file", "pool", "override", "driver", "hit", "partition"} <= names  # fmt: skip
    assert {record[1] for line in _lines(host) for record in line if record[0] == "partition"} == {
        "mig", "make", "destroy", "mixed", "place", "scheduler",
    }  # fmt: skip
    assert done > 12
    assert host.sysfs.listdir(PF)


def _lines(host: SimHost) -> list[Any]:
    import json

    text = (host.run_dir.parent / "journal").read_text()
    return [json.loads(line) for line in text.splitlines()[1:]]

# SPDX-License-Identifier: Apache-2.0
"""A verb that changes one VM reads that VM's GPUs: the number of PCI functions does not grow with the host's GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import Watch
from tests.hosts import SimulatedHost, create, open_sim_host, request, stop, yes
from vgpuctl.library import GpuHost
from vgpuctl.library.call import CallSettings
from vgpuctl.model.outcome import NoProgress

SCENARIO = """version: 1
storage: {{pools: [{{name: default, path: /pool}}]}}
images: [{{path: /old.qcow2, size_gib: 20}}, {{path: /new.qcow2, size_gib: 20}}]
networks: [{{name: default}}]
gpus: [{{model: L40S, count: {gpus}}}]
"""
FEW, MANY = 2, 12
_FUNCTION = re.compile(r"/sys/bus/pci/devices/([^/]+)/")
VERBS: dict[str, tuple[str, Callable[[GpuHost], object]]] = {
    "delete-vm": ("off", lambda host: host.delete_vm("vm")),
    "delete-vm of a running one": ("on", lambda host: host.delete_vm("vm")),
    "start-vm": ("off", lambda host: host.start_vm("vm")),
    "start-vm that runs": ("on", lambda host: host.start_vm("vm")),
    "stop-vm": ("on", lambda host: host.stop_vm("vm")),
    "stop-vm --force": ("on", lambda host: host.stop_vm("vm", force=True)),
    "reboot-vm": ("on", lambda host: host.reboot_vm("vm", force=True)),
    "set-vm of labels": ("on", lambda host: host.set_vm("vm", labels={"team": "cad"})),
    "set-vm of memory": ("off", lambda host: host.set_vm("vm", memory="3G")),
    "resize-disk": ("off", lambda host: host.resize_disk("vm", size="30GiB")),
    "refresh-vm": ("off", lambda host: host.refresh_vm("vm", "/new.qcow2")),
    "refresh-vm --drain": ("on", lambda host: host.refresh_vm("vm", "/new.qcow2", drain=True)),
    "detach-vgpu": ("off", lambda host: host.detach_vgpu("vm")),
    "set-vm of the profile that it has": ("off", lambda host: host.set_vm("vm", profile="L40S-4Q")),
    "ensure-vm": ("off", lambda host: host.ensure_vm("vm", state="present", profile="L40S-4Q")),
    "ensure-vm --state started": ("off", lambda host: host.ensure_vm("vm", state="started")),
    "ensure-vm --state absent": ("off", lambda host: host.ensure_vm("vm", state="absent")),
    "ensure-vm with labels": ("on", lambda host: host.ensure_vm("vm", labels={"team": "cad"})),
    "ensure-vm with memory": ("off", lambda host: host.ensure_vm("vm", state="stopped", memory="3GiB")),
}


def functions_read(host: SimulatedHost, act: Callable[[GpuHost], object]) -> set[str]:
    """Return the PCI functions of which an act reads a file."""
    functions: set[str] = set()

    def note(_number: int, call: str, args: tuple[object, ...]) -> None:
        match = _FUNCTION.match(str(args[0])) if call.startswith("sysfs.") else None
        functions.update(match.groups() if match is not None else ())

    act(GpuHost(Watch(before=note).watch(host.ports), CallSettings(5, NoProgress(), yes, lambda: False)))
    return functions


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_reads_does_not_grow_with_the_gpus(tmp_path: Path, verb: str) -> None:
    state, act = VERBS[verb]
    counts = []
    for gpus in (FEW, MANY):
        host = open_sim_host(tmp_path / str(gpus), text=SCENARIO.format(gpus=gpus))
        create(host.ports, request("L40S-4Q", name="vm", image="/old.qcow2"))
        if state == "off":
            stop(host.ports, "vm")
        counts.append(len(functions_read(host.again(), act)))
    assert counts[0] == counts[1]


def test_a_vm_that_is_not_there_costs_no_read_of_a_gpu(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=SCENARIO.format(gpus=FEW))

    def ask(gpu_host: GpuHost) -> None:
        with pytest.raises(Exception, match="there is no VM nobody"):
            gpu_host.delete_vm("nobody")

    assert functions_read(host, ask) == set()

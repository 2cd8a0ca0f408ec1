# SPDX-License-Identifier: Apache-2.0
"""What a host knows of moving each vGPU of a running VM: by the kernel, NVML, backends and makers."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from tests.hosts import create, open_sim_host, request
from tests.meanwhile import with_calls
from tests.reserving_vms import vm_of
from tests.unit.operations.test_mtgpu_scheduler import mtt
from tests.unit.operations.test_xe_scheduler import card
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.vgpu_migration import (
    VFIO_DEBUG,
    VgpuMigrationFacts,
    read_vgpu_migration,
    read_write_speed,
)

MIB = 1 << 20
GPU = "0000:3b:00.0"


def facts(host, ports=None):
    vm = vm_of(host, "vm")
    read = read_vgpu_migration(ports or host.ports, observe(host.ports, scope_of_vm(vm.uuid)), vm)
    assert set(read) == {v.carrier for v in vm.record.vgpus}
    return list(read.values())


def with_vm(host, *profiles, **more):
    create(host.ports, request(*profiles, name="vm", **more))
    return host


def debugfs(host, files):
    """Return the host on which the kernel shows these files of the first vGPU's device; None: it may not be read."""
    carrier = vm_of(host, "vm").record.vgpus[0].carrier
    directory = f"{VFIO_DEBUG}/{carrier}"

    def listdir(path):
        if not path.startswith(directory):
            return host.ports.sysfs.listdir(path)
        if files is None:
            raise PermissionError
        return tuple(files) if path.endswith("migration") else ("migration",) if files else ()

    def read(path):
        return files[path.rpartition("/")[2]] if path.startswith(directory) else host.ports.sysfs.read(path)

    return with_calls(host.ports, "sysfs", listdir=listdir, read=read)


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("a16", "A16-2Q")])
def test_each_vgpu_has_what_it_would_send_and_how_fast(tmp_path, scenario, profile):
    host = with_vm(open_sim_host(tmp_path, scenario), profile, 2)
    size = 1024 if profile == "A100-4C" else 512
    for fact in facts(host):
        assert (fact.can_migrate, fact.why_not) == (True, None)
        assert (fact.state_bytes, fact.read_bytes_per_second) == (size * MIB, 6_000_000_000)
        gpu = vm_of(host, "vm").record.vgpus[0].gpu
        assert host.ports.nvml.pairing(gpu, fact.metadata).live
        assert read_write_speed(host.ports, gpu) == 4_000_000_000


def test_without_nvml_the_backend_alone_speaks(tmp_path):
    text = f'version: 1\nnvidia: {{nvml: absent}}\ngpus: [{{model: "A16", address: "{GPU}"}}]\n'
    text += "storage: {pools: [{name: default}]}\n"
    host = with_vm(open_sim_host(tmp_path, text=text), "A16-2Q")
    assert facts(host) == [VgpuMigrationFacts(can_migrate=True)]
    assert read_write_speed(host.ports, GPU) is None


@pytest.mark.parametrize("param", ["enable_uvm=1", "enable_debugging=1", "enable_profiling=1"])
def test_parameters_of_nvidia_switch_it_off_whatever_the_kernel_shows(tmp_path, param):
    host = with_vm(open_sim_host(tmp_path), "A100-4C", vgpu_params=(("frame_rate_limiter", "0"), (param[:-2], "1")))
    ports = debugfs(host, {"state": "RUNNING\n", "features": "stop-copy\npre-copy\n"})
    for seen in (host.ports, ports):
        (fact,) = facts(host, seen)
        assert (fact.can_migrate, fact.why_not) == (False, f"its vGPU parameter {param} switches live migration off")


@pytest.mark.parametrize(
    ("files", "can"),
    [
        (None, True),
        ({}, False),
        ({"state": "RUNNING\n"}, True),
        ({"state": "RUNNING\n", "features": "stop-copy\np2p\npre-copy\ndirty-tracking\n"}, True),
        ({"state": "RUNNING\n", "features": "\n"}, False),
    ],
    ids=["not readable", "no migration", "before 6.18", "6.18", "none"],
)
def test_what_the_kernel_shows_of_the_driver_counts(tmp_path, files, can):
    host = with_vm(open_sim_host(tmp_path), "A100-4C")
    (fact,) = facts(host, debugfs(host, files))
    assert fact.can_migrate is can
    assert (fact.why_not or "").startswith("its driver cannot be asked for its state") is not can


@pytest.mark.parametrize("can", [True, False])
def test_a_vf_moves_with_the_drivers_own_vfio_driver(tmp_path, can):
    host = with_vm(card(tmp_path), mode="sriov")
    (fact,) = facts(host)
    assert (fact.can_migrate, fact.why_not) == (
        False,
        "vfio-pci cannot read the state of a VF; with xe-vfio-pci it could",
    )
    assert str(fact.fix).startswith("modprobe xe-vfio-pci")
    (fact,) = facts(host, debugfs(host, {"state": "RUNNING\n"} if can else {}))
    assert fact.can_migrate is can


def test_a_whole_gpu_stays(tmp_path):
    host = with_vm(open_sim_host(tmp_path, "mixed"), mode="passthrough")
    (fact, *_rest) = facts(host)
    assert (fact.can_migrate, fact.why_not) == (False, "no driver can read the state of a whole GPU")


def test_mdevs_of_moore_threads_move(tmp_path):
    (fact,) = facts(with_vm(mtt(tmp_path), "mtgpu-1104"))
    assert fact == VgpuMigrationFacts(can_migrate=True)


def metadata(**other):
    text = json.dumps({"driver": "550.90.05", "model": "NVIDIA A100-PCIE-40GB", **other})
    return b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("other", "limits"), [({}, ()), ({"driver": "535.1"}, ("host-driver",)), ({"model": "NVIDIA L4"}, ("gpu",))]
)
def test_simulated_nvml_compares_a_vgpu_of_another_host(tmp_path, other, limits):
    pairing = open_sim_host(tmp_path).ports.nvml.pairing(GPU, metadata(**other))
    assert (pairing.live, pairing.limits) == (not limits, limits)

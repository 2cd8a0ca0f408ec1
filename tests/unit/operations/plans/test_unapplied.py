# SPDX-License-Identifier: Apache-2.0
"""After a boot no vGPU is created on a GPU without its settings of host.yaml: restore-host could not set them then."""

from __future__ import annotations

import pytest

from tests import partitions
from tests.hosts import SimulatedHost, context, create, open_sim_host, picture, request, start
from tests.mixed_sizes import PRO
from tests.schedulers import POOL, TWO_MS, act, restore, runs, small, with_vms
from tests.vgpus import make
from vgpuctl.errors import HostCannot
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.operations.queries import explain
from vgpuctl.value import replace

NOT_SET = (
    r"0000:3b:00\.0 is not set up as host\.yaml says: the scheduler is best_effort, not fixed_share, time slice 2 ms"
)


def booted(host: SimulatedHost) -> SimulatedHost:
    host.sim.reboot()
    return host.again()


@pytest.fixture
def host(tmp_path) -> SimulatedHost:
    """A host after a boot: host.yaml has a scheduler, and nothing has set it yet."""
    host = with_vms(open_sim_host(tmp_path))
    create(host.ports, request("A100-4C", name="at-times", reserve="running"), start=False)
    act(host.ports, TWO_MS, drain=True)
    return booted(host)


def create_two(host: SimulatedHost) -> Outcome:
    wanted, names = request("A100-4C"), ("new-1", "new-2")
    return ensure_vms(host.ports, context(wait_seconds=5.0), wanted, names, start=False, parallel=2)


def create_host_vgpu(host: SimulatedHost) -> Outcome:
    return make(host.ports, "A100-4C")


@pytest.mark.parametrize(
    "command",
    [
        lambda host: start(host.ports, "on"),
        lambda host: start(host.ports, "at-times"),
        lambda host: create(host.ports, request("A100-4C", name="new")),
        lambda host: create(host.ports, request("A100-4C", name="new"), dry_run=True),
        create_two,
        create_host_vgpu,
    ],
    ids=[
        "start-vm",
        "start-vm --reserve running",
        "create-vm",
        "create-vm --dry-run",
        "create-vm --count",
        "create-vgpu",
    ],
)
def test_the_first_vgpu_waits_for_the_scheduler_of_host_yaml(host, command):
    before = picture(host)
    with pytest.raises(HostCannot, match=NOT_SET) as raised:
        command(host)
    assert str(raised.value.hint).startswith("vgpuctl restore-host ")
    assert (picture(host), host.ports.claims.all()) == (before, ())
    restore(host)
    assert command(host).changed
    assert runs(host).policy is SchedulerPolicy.FIXED_SHARE


def test_a_vm_that_reserves_no_slot_can_be_created(host):
    wanted = request("A100-4C", name="new", reserve="running")
    assert create(host.ports, wanted, start=False).changed


def test_a_gpu_that_has_a_vgpu_takes_more(host):
    without_nvml = replace(host.ports, nvml=AbsentNvml("as in libvirt's hook"))
    assert start(without_nvml, "on").changed
    assert start(host.ports, "off").changed


@pytest.mark.parametrize("options", [{"driver": "470.63"}, {"nvml": "absent"}])
def test_what_only_a_load_of_the_driver_changes_blocks_nothing(tmp_path, options):
    host = small(tmp_path, more=POOL, **options)
    host.ports.host_file.replace("version: 1\ngpus: {all: {scheduler: {policy: fixed_share}}}\n", None)
    assert create(host.ports, request("A100-4C", name="new")).changed


def test_mixed_sizes_come_first(tmp_path):
    host = open_sim_host(tmp_path, PRO)
    create(host.ports, request("DC-4Q", name="vm"), start=False)
    partitions.act(host.ports, partitions.FIRST, mixed=True, drain=True)
    host = booted(host)
    with pytest.raises(HostCannot, match="mixed sizes are off, not on"):
        start(host.ports, "vm")
    restore(host)
    assert start(host.ports, "vm").changed


def test_mig_comes_first(tmp_path):
    host = partitions.small(tmp_path)
    partitions.act(host.ports, partitions.FIRST, partitions.mig("1g.10gb"))
    host = booted(host)
    with pytest.raises(HostCannot, match="MIG is off, not on; the driver"):
        create(host.ports, request("H100-10C", name="vm"))


def test_a_scheduler_that_nothing_has_set_yet_blocks_no_first_vgpu(tmp_path):
    host = open_sim_host(tmp_path)
    text = 'version: 1\ngpus: {"0000:3b:00.0": {scheduler: {policy: fixed_share, time_slice_ms: 2}}}\n'
    host.ports.host_file.replace(text, None)
    assert runs(host).policy != SchedulerPolicy.FIXED_SHARE
    create(host.ports, request("A100-4C", name="vm"))


@pytest.fixture
def mixed_off(tmp_path) -> SimulatedHost:
    """A host after a boot: both GPUs are to have mixed sizes, and one of them has got them."""
    gpus = 'gpus: [{model: RTX PRO 6000, address: "0000:3b:00.0"}, {model: RTX PRO 6000, address: "0000:5e:00.0"}]\n'
    host = open_sim_host(tmp_path, text="version: 1\nstorage: {pools: [{name: default}]}\n" + gpus)
    for address in (partitions.FIRST, "0000:5e:00.0"):
        partitions.act(host.ports, address, mixed=True)
    host = booted(host)
    host.ports.nvml.set_mixed_size("0000:5e:00.0", enabled=True)
    return host


def test_no_room_is_shown_on_a_gpu_that_lacks_its_settings(mixed_off):
    result = explain(mixed_off.ports, "DC-48Q").data
    assert [(gpu.address, gpu.free) for gpu in result.gpus] == [(partitions.FIRST, 0), ("0000:5e:00.0", 2)]
    (reason,) = result.gpus[0].reasons
    assert "not set up as host.yaml says: mixed sizes are off, not on; vgpuctl restore-host" in reason


def test_another_gpu_takes_the_vgpu_until_there_is_no_more_room(mixed_off):
    for name in ("a", "b"):
        done = create(mixed_off.ports, request("DC-48Q", name=name), start=False)
        assert [v.gpu for v in done.data.vgpus] == ["0000:5e:00.0"]
    with pytest.raises(HostCannot, match=r"0000:3b:00\.0 is not set up as host\.yaml says"):
        create(mixed_off.ports, request("DC-48Q", name="c"))

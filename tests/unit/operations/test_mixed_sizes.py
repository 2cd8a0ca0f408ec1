# SPDX-License-Identifier: Apache-2.0
"""Mixed sizes: turned on and off on a GPU without vGPUs, with a drain if it has some, and unchanged by new VFs."""

from __future__ import annotations

import pytest

from tests.hosts import context, create, open_sim_host, picture, request, stop
from tests.partitions import FIRST, OFF, SECOND, act, configured_gpu, everything, mig, partition_state, small
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import InUse, InvalidInput, NoCapacity
from vgpuctl.gpu_setup.sriov import count_vfs
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.restore import restore_host
from vgpuctl.value import replace


def test_mixed_sizes_are_set_on_an_empty_gpu_and_again_with_new_vfs(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    assert act(host.ports, SECOND, mixed=True).data.partition.mixed_size is True
    assert configured_gpu(host, SECOND).mixed_size is True
    assert not act(host.ports, SECOND, mixed=True).changed
    act(host.ports, SECOND, mode="passthrough")
    done = act(host.ports, SECOND, mode="vgpu")
    assert done.steps[-2] == "turn mixed sizes of 0000:3f:00.0 on (NVML)"
    assert partition_state(host, SECOND)[2] is True
    act(host.ports, SECOND, mixed=False)
    assert (partition_state(host, SECOND)[2], configured_gpu(host, SECOND).mixed_size) == (False, None)


def test_mixed_sizes_are_drained_for_and_every_vm_is_back(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    create(host.ports, request("H100-10C", name="on", gpu=SECOND))
    create(host.ports, request("H100-10C", name="off", gpu=SECOND))
    stop(host.ports, "off")
    before = picture(host)
    with pytest.raises(InUse, match=r"2 vGPUs of off, on, and the driver changes mixed sizes") as raised:
        act(host.ports, SECOND, mixed=True)
    assert str(raised.value.hint).startswith("--drain shuts")
    done = act(host.ports, SECOND, mixed=True, drain=True)
    assert (done.steps[0], done.steps[-1]) == ("shut down VM on", "start VM on again")
    assert (partition_state(host, SECOND)[2], picture(host)) == (True, before)


def test_vgpus_without_a_recorded_placement_are_restored_next_to_each_other(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    for name in ("one", "two"):
        create(host.ports, request("H100-40C", name=name, gpu=SECOND), start=False)
    act(host.ports, SECOND, mixed=True, drain=True)
    host.sim.reboot()
    host = host.again()
    spec = parse_host_spec(host.ports.host_file.read(), "host.yaml")
    done = restore_host(host.ports, context(wait_seconds=5.0), spec)
    assert [entry.name for entry in done.data.restored] == [SECOND, "one", "two"]
    snapshot = observe(host.ports, ReadScope(types=True))
    (first, second) = (vgpu.placement_id for vgpu in snapshot.vgpus_on(SECOND))
    assert None not in (first, second)
    assert first != second


def test_vgpus_of_several_sizes_keep_mixed_sizes_on(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    act(host.ports, SECOND, mixed=True)
    create(host.ports, request("H100-40C", name="large", gpu=SECOND))
    create(host.ports, request("H100-10C", name="small", gpu=SECOND))
    with pytest.raises(InUse, match="has H100-10C, H100-40C of large, small, which have several sizes"):
        act(host.ports, SECOND, mixed=False, drain=True)


class NoPlaces:
    """NVML of a driver that reports the placements of mixed sizes only while they are on."""

    def __init__(self, real):
        self._real = real

    def placements(self, address):
        return {}

    def __getattr__(self, name):
        return getattr(self._real, name)


def five_where_mixed_sizes_have_four_places(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    for number in range(5):
        create(host.ports, request("H100-16C", name=f"vm-{number}", gpu=SECOND))
    return host


def test_more_vgpus_than_mixed_size_placements_are_refused_before_any_change(tmp_path):
    host = five_where_mixed_sizes_have_four_places(tmp_path)
    before = everything(host, SECOND)
    for drain in (True, False):
        with pytest.raises(InUse, match=r"has H100-16C of vm-0, .* fewer fit with mixed sizes"):
            act(host.ports, SECOND, mixed=True, drain=drain, dry_run=drain)
    assert everything(host, SECOND) == before


def test_more_vgpus_than_mixed_sizes_have_places_for_leave_it_as_it_was(tmp_path):
    host = five_where_mixed_sizes_have_four_places(tmp_path)
    before = everything(host, SECOND)
    with pytest.raises(NoCapacity, match="no room for H100-16C") as raised:
        act(replace(host.ports, nvml=NoPlaces(host.ports.nvml)), SECOND, mixed=True, drain=True)
    assert (everything(host, SECOND), raised.value.left) == (before, [])


def test_set_mig_drops_mixed_sizes_which_it_excludes(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    act(host.ports, SECOND, mixed=True)
    with pytest.raises(InvalidInput, match="at the same time"):
        act(host.ports, SECOND, mig("1g.10gb"))
    act(host.ports, SECOND, mig("1g.10gb"), mixed=False)
    assert (configured_gpu(host, SECOND).mixed_size, partition_state(host, SECOND)) == (
        None,
        ((True, True), ["19@0:1"], None),
    )
    act(host.ports, SECOND, OFF, mixed=True)
    assert (configured_gpu(host, SECOND).mixed_size, partition_state(host, SECOND)) == (
        True,
        ((False, False), [], True),
    )


def test_mixed_sizes_that_go_off_on_a_gpu_without_vfs_leave_it_without_where_nothing_asks_for_them(tmp_path):
    host = small(tmp_path, more="vfs: {enabled: 0}, mig: [1g.10gb]")
    assert act(host.ports, FIRST, None, mixed=False).steps == ()
    assert (count_vfs(host.ports, FIRST), host.ports.host_file.read()) == (0, None)
    assert partition_state(host.again())[:2] == ((True, True), ["19@0:1"])


def test_mixed_sizes_that_go_off_on_a_gpu_without_vfs_turns_them_on_where_host_yaml_asks_for_vgpus(tmp_path):
    host = small(tmp_path, more="vfs: {enabled: 0}")
    host.ports.host_file.replace(f'version: 1\ngpus: {{"{FIRST}": {{mode: vgpu}}}}\n', None)
    act(host.ports, FIRST, None, mixed=False)
    assert count_vfs(host.ports, FIRST) > 0

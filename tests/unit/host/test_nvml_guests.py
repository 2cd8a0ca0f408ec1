# SPDX-License-Identifier: Apache-2.0
"""NVML's running vGPUs: the VM of each, and the driver in its guest."""

from tests.unit.host.nvml_library import done_by
from vgpuctl.host.absent import AbsentNvml

ASK = "[[g.vm_uuid, g.driver_version] for g in nvml.guests(address)]"
VM = "aaaaaaaa-0000-4000-8000-000000000001"


def test_each_running_vgpu_has_its_vm_and_the_driver_in_there(tmp_path):
    (guests,), _calls = done_by(tmp_path, ASK, flags=("-DGUESTS=2",))
    assert guests == [[VM, "551.61"], [None, None]], "another hypervisor's number is no UUID, and words are no version"


def test_a_vgpu_that_ends_has_no_vm(tmp_path):
    (guests,), _calls = done_by(tmp_path, ASK, flags=("-DGUESTS=3",))
    assert guests[2] == [None, None]


def test_a_gpu_without_running_vgpus_has_none_and_a_library_without_the_calls_does_not_tell(tmp_path):
    for flags, reported in (("-DGUESTS=0",), ()), ((), None), (("-DGUESTS=2", "-DNO_GUEST_DRIVER"), None):
        (guests,), _calls = done_by(tmp_path, "nvml.guests(address)", flags=flags)
        assert guests == reported
    assert AbsentNvml("--root").guests("0000:3b:00.0") is None

# SPDX-License-Identifier: Apache-2.0
"""The code that backends share: holders of a device, and errors of refused writes."""

from __future__ import annotations

import errno

import pytest

from tests.faults import failing
from tests.hosts import open_sim_host
from tests.values import A4C, a100, assigned
from vgpuctl.backends.base import hostdev_alias, refuse_if_held, verify_params, vfio_nodes, write_error
from vgpuctl.errors import InUse, VerifyFailed
from vgpuctl.value import replace


class _Shows:
    """A file tree where every file has the same text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, path: str) -> str:
        return self._text


FUNCTION = "/sys/bus/pci/devices/0000:3b:00.4"


def test_a_function_that_cannot_be_seen_is_in_use(tmp_path):
    host = open_sim_host(tmp_path)
    with pytest.raises(InUse) as raised:
        refuse_if_held(failing(host.ports, 3), "0000:3b:00.4", FUNCTION)
    assert "cannot determine whether" in str(raised.value)
    refuse_if_held(host.ports, "0000:3b:00.4", FUNCTION)


def test_the_node_is_that_of_the_iommu_group(tmp_path):
    host = open_sim_host(tmp_path)
    group, device = vfio_nodes(host.ports, FUNCTION)
    assert group.startswith("/dev/vfio/")
    assert device.startswith("/dev/vfio/devices/vfio")
    assert vfio_nodes(host.ports, "/sys/bus/pci/devices/0000:99:00.0") == ()


def test_a_refused_write_names_errno_path_and_where_to_look():
    error = write_error(OSError(errno.EINVAL, "Invalid argument"), "making X", "/sys/x/create")
    assert str(error) == "making X failed: Invalid argument (EINVAL) writing /sys/x/create"
    assert (error.facts["errno"], error.facts["path"]) == (errno.EINVAL, "/sys/x/create")
    assert "journalctl" in str(error.hint)


def test_aliases_are_libvirts_user_aliases():
    assert hostdev_alias(assigned(a100(), A4C, index=3)) == "ua-vgpuctl-3"


@pytest.mark.parametrize(("text", "right"), [("a=1,b=2", True), ("b=2, a=1 c=3", True), ("a=1", False), ("", False)])
def test_parameters_are_read_back_in_any_order(tmp_path, text, right):
    host = open_sim_host(tmp_path)
    ports = replace(host.ports, sysfs=_Shows(text))
    vgpu = replace(assigned(a100(), A4C), params="a=1,b=2")
    if right:
        verify_params(ports, vgpu, "/params")
        return
    with pytest.raises(VerifyFailed):
        verify_params(ports, vgpu, "/params")

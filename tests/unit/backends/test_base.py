# SPDX-License-Identifier: Apache-2.0
"""What the backends share: who holds a device, and what a refused write is called."""

from __future__ import annotations

import errno

import pytest

from tests.faults import failing
from tests.values import A4C, a100, promised
from tests.worlds import open_host
from vgpuctl.backends.base import alias, check_params, refuse_if_held, vfio_nodes, write_failed
from vgpuctl.errors import InUse, VerifyFailed
from vgpuctl.value import replace


class _Shows:
    """A tree in which every file shows the same text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, path: str) -> str:
        return self._text


FUNCTION = "/sys/bus/pci/devices/0000:3b:00.4"


def test_what_cannot_be_seen_is_in_use_and_not_free(tmp_path):
    host = open_host(tmp_path)
    with pytest.raises(InUse) as raised:
        refuse_if_held(failing(host.world, 3), "0000:3b:00.4", FUNCTION)
    assert "cannot be seen" in str(raised.value)
    refuse_if_held(host.world, "0000:3b:00.4", FUNCTION)


def test_the_node_is_that_of_the_iommu_group(tmp_path):
    host = open_host(tmp_path)
    group, device = vfio_nodes(host.world, FUNCTION)
    assert group.startswith("/dev/vfio/")
    assert device.startswith("/dev/vfio/devices/vfio")
    assert vfio_nodes(host.world, "/sys/bus/pci/devices/0000:99:00.0") == ()


def test_a_refused_write_names_errno_path_and_where_to_look():
    error = write_failed(OSError(errno.EINVAL, "Invalid argument"), "making X", "/sys/x/create")
    assert str(error) == "making X failed: Invalid argument (EINVAL) writing /sys/x/create"
    assert (error.facts["errno"], error.facts["path"]) == (errno.EINVAL, "/sys/x/create")
    assert "journalctl" in str(error.hint)


def test_aliases_are_libvirts_user_aliases():
    assert alias(promised(a100(), A4C, index=3)) == "ua-vgpuctl-3"


@pytest.mark.parametrize(("text", "right"), [("a=1,b=2", True), ("b=2, a=1 c=3", True), ("a=1", False), ("", False)])
def test_parameters_are_read_back_in_any_order(tmp_path, text, right):
    host = open_host(tmp_path)
    world = replace(host.world, sysfs=_Shows(text))
    vgpu = replace(promised(a100(), A4C), params="a=1,b=2")
    if right:
        check_params(world, vgpu, "/params")
        return
    with pytest.raises(VerifyFailed):
        check_params(world, vgpu, "/params")

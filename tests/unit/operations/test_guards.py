# SPDX-License-Identifier: Apache-2.0
"""What every command checks first, with errors that say what to do."""

from __future__ import annotations

import pytest

from tests.hosts import context, open_sim_host
from tests.values import a100, snapshot, vm
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.operations.guards import find_vm, require_libvirt, require_writable
from vgpuctl.value import replace

DOWN = replace(snapshot(a100()), hypervisor=HypervisorStatus(False, "qemu:///system", "no socket"))


def test_a_read_only_host_gives_its_reason(tmp_path):
    ports = open_sim_host(tmp_path, "empty").ports
    require_writable(ports, context())
    with pytest.raises(InvalidInput) as raised:
        require_writable(replace(ports, read_only_reason="it is a captured tree"), context())
    assert "it is a captured tree" in str(raised.value)


def test_a_libvirt_that_does_not_answer_is_named_with_its_address_and_reason():
    require_libvirt(snapshot(a100()))
    with pytest.raises(HostCannot) as raised:
        require_libvirt(DOWN)
    assert "qemu:///system: no socket" in str(raised.value)
    assert raised.value.facts["check"] == "libvirt"


def test_a_vm_is_found_by_name_and_uuid_and_never_called_missing_without_libvirt():
    observed = snapshot(a100(), vms=[vm(1)])
    assert find_vm(observed, "vdi-001") == find_vm(observed, vm(1).uuid) == vm(1)
    with pytest.raises(NotFound) as raised:
        find_vm(observed, "vdi-002")
    assert raised.value.facts["near"] == ["vdi-001"]
    with pytest.raises(HostCannot):
        find_vm(DOWN, "vdi-001")

# SPDX-License-Identifier: Apache-2.0
"""Addresses of other VMs' records are compared by number; a record without them, or with others, says nothing."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.create import check_network_configs, request_addresses
from vgpuctl.operations.plans.change import with_request_fields
from vgpuctl.value import replace

FILE = CloudInitFile("/net", "{version: 2, ethernets: {ens3: {addresses: [192.0.2.1/24, '2001:DB8::1/64']}}}")
REQUEST = request("A100-4C", name="b", seed=CloudInit(network_config=FILE))


def test_addresses_are_those_of_the_configuration_without_prefix_lengths():
    assert request_addresses(REQUEST) == ("192.0.2.1", "2001:db8::1")
    assert request_addresses(request("A100-4C")) == ()


@pytest.mark.parametrize(
    ("recorded", "warned"),
    [(["2001:db8::1"], True), (["192.0.2.2"], False), (None, False), ("192.0.2.1", False), ({"a": 1}, False)],
)
def test_the_record_of_another_vm_says_which_addresses_it_has(tmp_path, recorded, warned):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="a"))
    snapshot = observe(host.ports, ReadScope())
    (vm,) = snapshot.vms
    changed = replace(vm, record=with_request_fields(vm.record, static_addresses=recorded))
    warnings = check_network_configs(replace(snapshot, vms=(changed,)), [REQUEST])
    assert any("VM a has the static address 2001:db8::1 too" in warning for warning in warnings) is warned

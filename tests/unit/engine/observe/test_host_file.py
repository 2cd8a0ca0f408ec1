# SPDX-License-Identifier: Apache-2.0
"""host.yaml in a look at the host: what it says of each GPU, and a broken file that is told and stops placing."""

from __future__ import annotations

import pytest

from tests.worlds import create, open_host, start, stop, wish
from vgpuctl.engine import queries
from vgpuctl.engine.claim import narrow
from vgpuctl.engine.observe import Want, observe, observe_devices
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Mode
from vgpuctl.plan.choose import choose

GPU = "0000:3b:00.0"
SAID = f'version: 1\ngpus:\n  "{GPU}": {{mode: vgpu, cordoned: true}}\n'


def test_each_gpu_has_what_is_said_of_it(tmp_path):
    host = open_host(tmp_path, "mixed")
    host.sim.host_file.write_text(SAID)
    look = observe(host.world, Want())
    assert {g.address: (g.desired, g.cordoned) for g in look.gpus if g.desired or g.cordoned} == {
        GPU: (Mode.VGPU, True)
    }
    assert look.host_file_problem is None


def test_the_look_under_the_lock_keeps_what_was_said_without_reading_it_again(tmp_path):
    host = open_host(tmp_path)
    before = observe(host.world, Want(types=True))
    vgpus = choose(before, wish("A100-4C"), "6c9a3b4e-0000-4000-8000-000000000000")
    host.sim.host_file.write_text("broken: [")
    fresh = observe_devices(host.world, narrow(before, vgpus), vms=before.vms, status=before.hypervisor)
    assert (fresh.host_file_problem, [g.cordoned for g in fresh.gpus]) == (None, [False])


def test_a_broken_file_is_a_warning_for_who_looks_and_an_error_for_who_places(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    host.sim.host_file.write_text("version: 1\ngpus: {x: }\n")
    assert any("/etc/vgpuctl/host.yaml:2" in w for w in queries.list_gpus(host.world).warnings)
    with pytest.raises(InvalidInput, match=r"host\.yaml"):
        create(host.world, wish("A100-4C"))
    stop(host.world, "vm")
    assert start(host.world, "vm").data["state"] == "running"


def test_a_file_that_says_nothing_of_gpus_is_not_parsed_by_who_looks(tmp_path):
    host = open_host(tmp_path)
    host.sim.host_file.write_text("version: 1\ndefaults: {nonsense: 1}\n")
    assert observe(host.world, Want()).host_file_problem is None
    with pytest.raises(InvalidInput):
        read_host_spec(host.world)

# SPDX-License-Identifier: Apache-2.0
"""A completed change is reported, even if its result cannot be read any more."""

from __future__ import annotations

from tests.hosts import create, open_sim_host, request
from vgpuctl.model.request import NewDisk

NO_NVML = "version: 1\nnvidia: {nvml: absent}\ngpus:\n  - {model: A100}\n"


def test_a_vm_that_was_made_is_reported_although_the_last_look_fails(tmp_path):
    host = open_sim_host(tmp_path, text=NO_NVML + "faults:\n  - {on: find-domain, nth: 5}\n")
    done = create(host.ports, request("A100-4C", name="vm", disks=(NewDisk(1024),)))
    assert (done.changed, done.data.name, done.data.state) == (True, "vm", "unknown")
    assert len(done.data.vgpus) == len(done.data.disks) == 1
    assert "could not be checked again" in done.warnings[-1]

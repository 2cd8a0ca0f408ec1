"""`migrate-vm` between two hosts: VMs with an mtty and a copied disk go to the other host and back while they work."""

from __future__ import annotations

import pytest

from tests.lab.moving import VM, Site
from tests.lab.pair import SOURCE, TARGET, Pair
from tests.lab.vgpuctl_in import must


@pytest.mark.quick
@pytest.mark.deadline(1500)
def test_a_vm_at_work_moves_with_its_disk_there_and_back(pair: Pair) -> None:
    site = Site(pair)
    moved = must(site.source, "migrate-vm", VM, "--to", f"ssh://{TARGET}", "--copy-storage")
    assert (moved["is_live"], moved["copied_disks"]) == (True, ["vda"])
    assert [vgpu["profile"] for vgpu in moved["vgpus"]] == ["mtty-2"]
    site.is_whole_on(site.target, site.source)
    site.works(site.target)
    must(site.target, "migrate-vm", VM, "--to", f"ssh://{SOURCE}", "--copy-storage")
    site.is_whole_on(site.source, site.target)
    site.works(site.source)

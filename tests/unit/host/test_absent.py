# SPDX-License-Identifier: Apache-2.0
"""A host whose libvirt is not used."""

import inspect

import pytest

from vgpuctl.errors import HostCannot
from vgpuctl.host.absent import AbsentHypervisor, AbsentStorage
from vgpuctl.ports.libvirt import Hypervisor, Storage


def test_its_status_says_why():
    status = AbsentHypervisor("--root").status()
    assert not status.available
    assert "libvirt is not used: --root" in str(status.reason)


@pytest.mark.parametrize(("port", "absent"), [(Hypervisor, AbsentHypervisor), (Storage, AbsentStorage)])
def test_every_other_call_names_what_is_missing(port, absent):
    calls = [name for name in vars(port) if not name.startswith("_") and name != "status"]
    assert len(calls) > 7
    for name in calls:
        call = getattr(absent("--root"), name)
        needed = [p for p in inspect.signature(call).parameters.values() if p.default is p.empty]
        with pytest.raises(HostCannot, match="--root") as caught:
            call(**{p.name: "x" for p in needed})
        assert caught.value.facts["check"] == "libvirt"

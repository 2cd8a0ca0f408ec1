# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's copies of libvirt's numbers."""

import libvirt
import pytest

from vgpuctl.host.virt import constants

NAMES = [name for name in vars(constants) if name.startswith("VIR_")]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_libvirts_own(name):
    assert getattr(constants, name) == getattr(libvirt, name)


def test_every_state_has_a_word():
    states = {
        getattr(libvirt, name) for name in NAMES if name in libvirt.__dict__ and constants.__dict__[name] in range(8)
    }
    assert set(constants.VM_STATES) == set(range(1, 8)) <= states

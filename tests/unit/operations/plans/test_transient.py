# SPDX-License-Identifier: Apache-2.0
"""A VM that could not start again is never stopped."""

from __future__ import annotations

import pytest

from vgpuctl.errors import Refused
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.operations.plans.remove import refuse_transient_vms
from vgpuctl.value import replace

DEFINED = Vm("desk", "u-1", VmState.RUNNING, 1024, 1)


def test_only_those_without_a_definition_are_refused_by_name() -> None:
    refuse_transient_vms((DEFINED,))
    undefined = [replace(DEFINED, name=name, persistent=False) for name in ("zeta", "alpha")]
    with pytest.raises(Refused, match=r"^alpha, zeta: running without a definition") as refused:
        refuse_transient_vms((DEFINED, *undefined))
    assert refused.value.facts["vms"] == ["alpha", "zeta"]
    assert "virsh define" in (refused.value.hint or "")

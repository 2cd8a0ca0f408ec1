# SPDX-License-Identifier: Apache-2.0
"""One file per framework: check, steps, and what each step does to the kernel.

`of` is the only place that knows which backend has which file; there is no if-chain over frameworks.
"""

from __future__ import annotations

from vgpuctl.backends.base import BackendKind
from vgpuctl.backends.mdev import MdevKind
from vgpuctl.backends.vendor_vf import VendorVfKind
from vgpuctl.backends.whole import PassthroughKind, SriovVfKind
from vgpuctl.model.gpu import Backend

_KINDS: dict[Backend, BackendKind] = {
    Backend.MDEV_PF: MdevKind(),
    Backend.MDEV_VF: MdevKind(),
    Backend.VENDOR_VF: VendorVfKind(),
    Backend.SRIOV_VF: SriovVfKind(),
    Backend.PASSTHROUGH: PassthroughKind(),
}


def of(backend: Backend) -> BackendKind:
    """Return what knows this backend."""
    return _KINDS[backend]

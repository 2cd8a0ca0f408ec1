# SPDX-License-Identifier: Apache-2.0
"""One module per vGPU framework: its check, its steps, and what each step does to the kernel.

`backend_for` alone maps backends to modules; there is no if-chain over frameworks.
"""

from __future__ import annotations

from vgpuctl.backends.base import BackendOps
from vgpuctl.backends.mdev import MdevBackend
from vgpuctl.backends.pci_function import PassthroughBackend, SriovVfBackend
from vgpuctl.backends.vendor_vf import VendorVfBackend
from vgpuctl.model.gpu import Backend

_BACKENDS: dict[Backend, BackendOps] = {
    Backend.MDEV_PF: MdevBackend(),
    Backend.MDEV_VF: MdevBackend(),
    Backend.VENDOR_VF: VendorVfBackend(),
    Backend.SRIOV_VF: SriovVfBackend(),
    Backend.PASSTHROUGH: PassthroughBackend(),
}


def backend_for(backend: Backend) -> BackendOps:
    """Return the operations of this backend."""
    return _BACKENDS[backend]

# SPDX-License-Identifier: Apache-2.0
"""One module per vGPU framework: its facts, its check, its steps, and what each step does to the kernel.

`backend_for` alone maps backends to modules; nothing above asks which backend it is, only for its facts.
"""

from __future__ import annotations

from vgpuctl.backends.base import GpuBackend
from vgpuctl.backends.mdev import MdevBackend
from vgpuctl.backends.pci_function import PassthroughBackend, SriovVfBackend
from vgpuctl.backends.vendor_vf import VendorVfBackend
from vgpuctl.model.gpu import Backend, GpuMode

_ALL: tuple[GpuBackend, ...] = (
    MdevBackend(Backend.MDEV_PF),
    MdevBackend(Backend.MDEV_VF),
    VendorVfBackend(),
    SriovVfBackend(),
    PassthroughBackend(),
)
_BACKENDS = {backend.name: backend for backend in _ALL}
_NO_BACKEND = GpuBackend()


def backend_for(backend: Backend | None) -> GpuBackend:
    """Return the facts and operations of this backend; for None, those of a GPU that offers nothing now."""
    return _NO_BACKEND if backend is None else _BACKENDS[backend]


def backend_of_mode(mode: str) -> GpuBackend:
    """Return the backend by which a GPU in this mode is given without a profile: `sriov` or `passthrough`."""
    return next(b for b in _ALL if b.mode is GpuMode(mode) and not b.creates_devices)

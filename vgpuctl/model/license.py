# SPDX-License-Identifier: Apache-2.0
"""A license of NVIDIA's vGPU software, as a guest gets it."""

from __future__ import annotations

from vgpuctl.errors import VgpuctlError
from vgpuctl.value import Value

VGPU_FEATURE = 1
"""FeatureType in gridd.conf for a guest with a vGPU."""


class License(Value):
    """A license: a secret, of which only the name is ever shown.

    `token`: NVIDIA's client configuration token; `expiry`: when it expires, in seconds since 1970, None for never.
    `certificates`: of the license server, in PEM, one by one. `feature`: FeatureType in gridd.conf. `problem`: why no
    guest can have it now; a command that gives it to none goes on.
    """

    name: str
    token: str
    certificates: tuple[str, ...] = ()
    feature: int = VGPU_FEATURE
    expiry: float | None = None
    problem: VgpuctlError | None = None

    def __repr__(self) -> str:
        return f"License(name={self.name!r})"

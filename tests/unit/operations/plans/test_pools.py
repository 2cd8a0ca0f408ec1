# SPDX-License-Identifier: Apache-2.0
"""Which pools may get disks, and whether they fit."""

from __future__ import annotations

import pytest

from vgpuctl.errors import HostCannot, NoSpace, NotFound
from vgpuctl.model.port_values import PoolInfo
from vgpuctl.operations.plans.facts import MIN_POOL_FREE_BYTES, check_full_size, check_pool, is_logical

GIB = 1 << 30


def pool(kind: str = "logical", path: str | None = "/dev/vg0", free: int | None = 10 * GIB) -> PoolInfo:
    return PoolInfo("vg0", kind, free is not None, path, None if free is None else 20 * GIB, free)


@pytest.mark.parametrize("kind", ["dir", "fs", "netfs", "logical"])
def test_a_supported_kind_is_taken(kind: str) -> None:
    check_pool("vg0", pool(kind))
    assert is_logical(pool(kind)) is (kind == "logical")


@pytest.mark.parametrize(("kind", "path"), [("rbd", None), ("disk", "/dev"), ("zfs", "/dev/zvol/tank"), ("dir", None)])
def test_another_kind_is_refused_by_name(kind: str, path: str | None) -> None:
    with pytest.raises(HostCannot, match=f"'vg0' is of kind {kind}") as caught:
        check_pool("vg0", pool(kind, path))
    assert caught.value.facts["kind"] == kind


def test_only_the_usual_pool_may_be_missing() -> None:
    check_pool("default", None)
    with pytest.raises(NotFound):
        check_pool("vg0", None)
    assert not is_logical(None)


def test_a_directory_pool_that_is_full_is_refused() -> None:
    check_pool("vg0", pool("dir", free=MIN_POOL_FREE_BYTES))
    with pytest.raises(NoSpace):
        check_pool("vg0", pool("dir", free=MIN_POOL_FREE_BYTES - 1))


def test_full_sizes_are_counted_in_a_logical_pool_alone() -> None:
    check_full_size(pool(), [5 * GIB, 5 * GIB])
    check_full_size(pool("dir"), [50 * GIB])
    check_full_size(None, [50 * GIB])
    check_full_size(pool(free=None), [50 * GIB])
    with pytest.raises(NoSpace, match=r"2 disks need 10 GiB, .* has 9 GiB of 20 GiB free"):
        check_full_size(pool(free=9 * GIB), [5 * GIB, 5 * GIB])
    with pytest.raises(NoSpace, match="6 disks need 12 GiB"):
        check_full_size(pool(), [GIB, 3 * GIB], vms=3)
    with pytest.raises(NoSpace, match="the disk needs 11 GiB more"):
        check_full_size(pool(), [11 * GIB], growth=True)

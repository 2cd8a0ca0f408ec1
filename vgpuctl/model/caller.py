# SPDX-License-Identifier: Apache-2.0
"""For whom a call works: a user of the host agent, whom the kernel names, and what that user may do.

A program that opens the host itself, as the command line of root does, has no caller: it may do what root may.
"""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.model.vm import Vm
from vgpuctl.value import Value


class Rights(StrEnum):
    """What a user may do, from all to little.

    `operator` and `fleet` are members of the group `vgpuctl` that host.yaml lists; a `viewer` changes nothing.
    """

    ROOT = "root"
    OPERATOR = "operator"
    FLEET = "fleet"
    MEMBER = "member"
    VIEWER = "viewer"


class Limits(Value):
    """How much VMs may take together; None: no limit. `gpu_memory_mib`: the framebuffer of their vGPUs and GPUs.

    `removals_per_hour`: so many VMs an account may delete or refresh in an hour; it is no limit of all accounts
    together. `keep_deleted_days`: for so many days the disks that it deletes wait in the bin; None: they are deleted.
    """

    vms: int | None = None
    vgpus: int | None = None
    gpu_memory_mib: int | None = None
    removals_per_hour: int | None = None
    keep_deleted_days: int | None = None


class Caller(Value):
    """A user of the host agent. `uid`: from the socket's peer credentials; `account`: the name of that user.

    `limits`: for the VMs of this account; `group_limits`: for those of all accounts together. Root has none.
    `licenses`, `clusters`, `domains`: those that guests of its VMs may get or join, by name. `via`: the interface
    that the request came through. `address`, `on_behalf_of`: where the request came from and for whom, as the client
    says; nothing proves them, and no right follows from them.
    """

    uid: int
    account: str
    rights: Rights
    limits: Limits = Limits()
    group_limits: Limits = Limits()
    licenses: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    via: str = "agent"
    address: str | None = None
    on_behalf_of: str | None = None

    @property
    def recorded_account(self) -> str | None:
        """What the record of a VM that this user makes says; None for root, whose VMs have no account."""
        return None if self.rights is Rights.ROOT else self.account

    def may_change(self, vm: Vm) -> bool:
        """Return whether this user may change a VM, or use its console and its guest's agent.

        A VM of another program has no account of anybody: it is root's, and only root gives it vGPUs.
        """
        if self.rights is Rights.ROOT:
            return True
        if self.rights is Rights.VIEWER or vm.record is None or not vm.record.created_vm:
            return False
        return self.rights is Rights.OPERATOR or vm.record.account == self.account

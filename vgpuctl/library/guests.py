# SPDX-License-Identifier: Apache-2.0
"""Requests to the helpers in the guests of running VMs, by the host agent, or else to their QEMU guest agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.text_templates import read_template
from vgpuctl.library.call import Calls, change

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.vms import VmReport


_FILES = {"linux": "vgpuctl_guest.py", "windows": "vgpuctl_guest.ps1"}


def read_guest_helper(system: str) -> str:
    """Return the helper's program for guests with this system: linux or windows."""
    return read_template("guest", _FILES[system])


class GuestCalls(Calls):
    """What can be asked of a guest."""

    @change("message-vm", "vm")
    def message_vm(self, name: str, text: str, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Show a text, one line, to everybody who is logged on in a running VM."""
        from vgpuctl.operations import guest_helper

        return guest_helper.message_vm(self._ports, self._context(dry_run=dry_run), name, text)

    @change("allow-logon", "vm")
    def allow_logon(
        self, name: str, user: str | None, *, nobody: bool = False, dry_run: bool = False
    ) -> Outcome[VmReport]:
        """Let one user log on in a running VM, and besides only the guest's administrators; None: everybody again.

        `nobody`: only the administrators.
        """
        from vgpuctl.operations import guest_helper

        return guest_helper.allow_logon(self._ports, self._context(dry_run=dry_run), name, user, nobody=nobody)

    @change("make-account", "vm")
    def make_account(self, name: str, user: str, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Let one user log on in a running desktop, with a local account that is made there, without a password."""
        from vgpuctl.operations import guest_helper

        return guest_helper.make_account(self._ports, self._context(dry_run=dry_run), name, user)

    @change("set-password", "vm")
    def set_password(self, name: str, user: str, password: str, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Give the account that make-account made a password: one that must be changed, or is good for one log-on."""
        from vgpuctl.operations import guest_helper

        return guest_helper.set_password(self._ports, self._context(dry_run=dry_run), name, user, password)

    @change("shutdown-in", "vm")
    def shutdown_in(
        self, name: str, minutes: int | None, *, text: str | None = None, dry_run: bool = False
    ) -> Outcome[VmReport]:
        """Have a guest shut down in so many minutes, with a warning to its users; None: cancel that."""
        from vgpuctl.operations import guest_helper

        return guest_helper.shut_down_in(self._ports, self._context(dry_run=dry_run), name, minutes, text)

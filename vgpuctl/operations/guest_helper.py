# SPDX-License-Identifier: Apache-2.0
"""The helper in a running VM's guest: what it reports, and requests that it carries out.

A helper is a program of the guest: what it reports is nothing that vgpuctl relies on for the host. Where no helper
reports, the QEMU guest agent carries out what it can (`guest_agent`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot, InvalidInput, Refused, VgpuctlError
from vgpuctl.model import guest_logon, hint_commands
from vgpuctl.model.guest_report import GuestReport
from vgpuctl.model.names import is_visible
from vgpuctl.model.numbers import format_utc
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import GuestHelperResult, GuestUserResult, VmReport
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations import guest_agent
from vgpuctl.operations.guards import find_vm_to_change, require_writable
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.operations.guest_agent import ConnectedAgent
    from vgpuctl.ports.guests import GuestHelpers
    from vgpuctl.ports.host import Host

MAX_TEXT_CHARACTERS = 1000
MAX_TEXT_BYTES = 3900
"""As JSON in ASCII: a line to the helper has at most 4 KiB."""
MAX_MINUTES = 1440
_PART_CHARACTERS = 2000


def read_guest_reports(host: Host, context: Context, vms: Sequence[Vm]) -> Mapping[str, GuestReport]:
    """Return what the helpers in these VMs' guests reported last, by uuid; without users where the caller may not know.

    A user may know who is logged on in VMs that this user may change.
    """
    reports = {} if host.guest_reports is None else host.guest_reports.read()
    shown: dict[str, GuestReport] = {}
    for vm in vms:
        report = reports.get(vm.uuid)
        if report is not None and vm.state not in NOT_RUNNING_STATES:
            may_know = context.caller is None or context.caller.may_change(vm)
            shown[vm.uuid] = report if may_know else replace(report, users=None)
    return shown


def helper_result(report: GuestReport | None) -> GuestHelperResult | None:
    """Return a report as show-vm has it; None without one."""
    if report is None:
        return None
    users = report.users
    return GuestHelperResult(
        seen=format_utc(int(report.seen)),
        version=report.helper,
        users=None if users is None else tuple(GuestUserResult(u.user, u.state, u.idle_seconds) for u in users),
        driver=report.driver,
        host_driver=report.host_driver,
        host_branch=report.host_branch,
        mps=report.mps,
    )


def message_vm(host: Host, context: Context, name: str, text: str) -> Outcome[VmReport]:
    """Show a text to everybody who is logged on in a VM.

    Raises:
        InvalidInput: the text is empty, too long, or has control characters.
        VgpuctlError: as `_ask`.
    """
    _check_text(text)
    by_agent = partial(guest_agent.show_message, text=text)
    return _ask(host, context, name, "message", f"show a message to the users of {name}", by_agent, text=text)


def allow_logon(
    host: Host, context: Context, name: str, user: str | None, *, nobody: bool = False
) -> Outcome[VmReport]:
    """Let only this user, and the guest's administrators, log on in a VM; None: everybody again.

    `nobody`: only the administrators.

    Raises:
        InvalidInput: it cannot be the name of a user, or there is one besides `nobody`.
        VgpuctlError: as `_ask`.
    """
    verb = "allow-logon"
    if nobody:
        if user is not None:
            raise InvalidInput(f"user: {user[:64]!a} is given, and nobody, too", hint="specify one of them")
        # without `user`: a helper that does not know `nobody` refuses that, and takes a user of null for everybody
        return _ask(host, context, name, verb, f"let nobody log on in {name}", None, nobody=True)
    if user is None:
        return _ask(host, context, name, verb, f"let everybody log on in {name}", None, user=None)
    if not guest_logon.is_guest_user(user):
        raise InvalidInput(
            f"user: {user[:100]!a} is not the name of a user",
            hint="name one user, as alice or CORP\\alice: letters, digits and _ . - @ \\, and no spaces",
            value=user[:100],
        )
    return _ask(host, context, name, verb, f"let {user} log on in {name}, and nobody else", None, user=user)


def make_account(host: Host, context: Context, name: str, user: str) -> Outcome[VmReport]:
    """Let only this user log on in a VM, with a local account that is made for him and has no password yet.

    Raises:
        InvalidInput: an account cannot have this name.
        VgpuctlError: as `_ask`; Refused: the guest has another account of this name, too.
    """
    _check_account(user)
    step = f"make the account {user} in {name}, and let nobody else log on"
    return _ask(host, context, name, "make-account", step, None, user=user)


def set_password(host: Host, context: Context, name: str, user: str, password: str) -> Outcome[VmReport]:
    """Give the account that `make_account` made a one-time password.

    Raises:
        InvalidInput: an account cannot have this name or password. No message has the password.
        VgpuctlError: as `_ask`; Refused: the helper did not make this account, too.
    """
    _check_account(user)
    if not guest_logon.is_password(password):
        raise InvalidInput("password: 12 to 64 letters and digits, with single hyphens between them")
    step = f"set a one-time password of {user} in {name}"
    return _ask(host, context, name, "set-password", step, None, user=user, password=password)


def _check_account(user: str) -> None:
    if not guest_logon.is_account(user):
        raise InvalidInput(
            f"user: {user[:100]!a} is not the name of a local account",
            hint="at most 32 of a to z, digits, _ and -, and a letter or _ first",
            value=user[:100],
        )


def shut_down_in(
    host: Host, context: Context, name: str, minutes: int | None, text: str | None = None
) -> Outcome[VmReport]:
    """Have a guest shut down in so many minutes, with a warning to its users; None: cancel that.

    Raises:
        InvalidInput: the number of minutes or the text is wrong.
        VgpuctlError: as `_ask`.
    """
    if text is not None:
        _check_text(text)
    by_agent = partial(guest_agent.shut_down_in, minutes=minutes, text=text)
    if minutes is None:
        return _ask(host, context, name, "shutdown-in", f"cancel the shutdown of {name}", by_agent, minutes=None)
    if not 0 <= minutes <= MAX_MINUTES:
        raise InvalidInput(f"minutes: {minutes} is not 0 to {MAX_MINUTES}", value=minutes)
    step = f"shut {name} down in {minutes} minutes"
    return _ask(host, context, name, "shutdown-in", step, by_agent, minutes=minutes, text=text)


def find_token_way(host: Host, vm: Vm) -> tuple[Callable[[str], None] | None, VgpuctlError | None]:
    """Return the function that replaces the license token in a guest now; None, and perhaps why, if nothing can.

    The function raises what `ports.guests.GuestHelpers.ask` or `guest_agent.put_token` raises.
    """
    helpers = _find_helpers(host, vm)
    if helpers is not None:
        return partial(_put_token, helpers, vm), None
    if vm.state in NOT_RUNNING_STATES:
        return None, None
    try:
        agent = guest_agent.connect_agent(host, vm, "put-token")
    except VgpuctlError as error:
        return None, error
    return (None if agent is None or agent.is_windows else partial(guest_agent.put_token, agent)), None


def _put_token(helpers: GuestHelpers, vm: Vm, token: str) -> None:
    """Have the helper replace the token, in parts that fit into lines."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    parts = [token[at : at + _PART_CHARACTERS] for at in range(0, len(token), _PART_CHARACTERS)]
    for number, part in enumerate(parts, 1):
        helpers.ask(vm.uuid, "put-token", part=number, parts=len(parts), data=part, sha256=digest)


def _find_helpers(host: Host, vm: Vm) -> GuestHelpers | None:
    """Return what asks the helper in a VM's guest; None if that helper cannot be asked now."""
    is_reported = host.guest_reports is not None and vm.uuid in host.guest_reports.read()
    return host.guest_helpers if is_reported and vm.state not in NOT_RUNNING_STATES else None


def _ask(
    host: Host,
    context: Context,
    name: str,
    verb: str,
    step: str,
    by_agent: Callable[[ConnectedAgent], None] | None,
    **values: object,
) -> Outcome[VmReport]:
    """Have the helper of a VM carry out a request, or else its QEMU guest agent; a dry run says what would be asked.

    `by_agent`: has the QEMU guest agent do it; None: it cannot.

    Raises:
        Refused: the VM is off, or its helper or guest agent refused it.
        BlockedByGuest: the guest's administrator blocks it.
        NotYours: it is another account's.
        HostCannot: no helper reports, or this is not the host agent, and no guest agent answers.
        Busy: no answer came in time.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    # a message changes nothing about which a controller decides
    asks = replace(context, protects_desktops=False) if verb == "message-vm" else context
    vm = find_vm_to_change(asks, snapshot, name)
    if vm.state in NOT_RUNNING_STATES:
        raise Refused(
            f"{vm.name} is {vm.state}: nothing answers in its guest",
            hint=None if verb == "shutdown-in" else hint_commands.run_command(vm),
            vm=vm.name,
            state=str(vm.state),
        )
    helpers = _find_helpers(host, vm)
    if helpers is not None:
        act: Callable[[], None] = partial(helpers.ask, vm.uuid, verb, **values)
    else:
        agent = None if by_agent is None else guest_agent.connect_agent(host, vm, verb)
        if agent is None or by_agent is None:
            raise _nobody_answers(host, vm, verb, can_agent=by_agent is not None)
        act, step = partial(by_agent, agent), f"{step}, by the QEMU guest agent"
    if not context.dry_run:
        context.progress.on_plan((step,))
        context.progress.on_step_start(1, step)
        act()
        context.progress.on_step_finish(1, step)
    return Outcome(True, vm_result(snapshot, vm), (step,), snapshot.warnings, dry_run=context.dry_run)


def _nobody_answers(host: Host, vm: Vm, verb: str, *, can_agent: bool) -> HostCannot:
    """Return the error for a guest where neither the helper nor the QEMU guest agent carries out a request."""
    besides = "no QEMU guest agent answers there" if can_agent else "the QEMU guest agent cannot do it"
    if host.guest_helpers is None:
        return _only_the_agent(host, verb, besides)
    is_expected = vm.record is not None and vm.record.requested("guest_helper", bool)
    return no_helper(vm.name, verb, besides, is_expected=is_expected)


def no_helper(name: str, verb: str, besides: str = "", *, is_expected: bool | None = False) -> HostCannot:
    """Return the error for a guest whose helper has not reported.

    `besides`: what else does not work. `is_expected`: cloud-init brings the helper there.
    """
    by_hand = (
        f"vgpuctl set-vm {name} --guest-helper, then vgpuctl reboot-vm {name}; or by hand: vgpuctl print-helper > "
        "vgpuctl-guest; in the guest: sudo python3 vgpuctl-guest install"
    )
    expected = (
        f"it comes at the guest's next boot: vgpuctl reboot-vm {name}; in the guest: systemctl status vgpuctl-guest"
    )
    return HostCannot(
        f"{verb}: no helper in the guest of {name} reports to the host agent{', and ' if besides else ''}{besides}",
        hint=expected if is_expected else by_hand,
        check="guest-helper",
        vm=name,
    )


def _check_text(text: str) -> None:
    if not text.strip():
        raise InvalidInput("text: it is empty, or has only blanks", value=text)
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidInput(f"text: {len(text)} characters, at most {MAX_TEXT_CHARACTERS} are possible", value=len(text))
    if not all(map(is_visible, text)):
        raise InvalidInput("text: it has a line break or another control character; a message is one line")
    if len(json.dumps(text)) > MAX_TEXT_BYTES:
        raise InvalidInput(
            f"text: {len(text)} characters, of which many are not ASCII, are too long for one line to the guest",
            hint="about 600 characters of most scripts fit, or 300 emoji",
            value=len(text),
        )


def _only_the_agent(host: Host, verb: str, besides: str) -> HostCannot:
    real = "systemctl start vgpuctl-agent.socket; vgpuctl install-host --agent installs it"
    run_one = f"vgpuctl --host {host.name} agent run --socket PATH --state DIR runs one; then use --host agent:PATH"
    return HostCannot(
        f"{verb}: only the host agent can reach the helper in a guest, and this command did not go through it; "
        f"{besides}",
        hint=real if host.name == "local" else run_one,
        check="guest-helper",
    )

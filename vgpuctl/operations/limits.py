# SPDX-License-Identifier: Apache-2.0
"""The limits of host.yaml on what the VMs of an account, and of all accounts together, may take.

They are checked with each plan, and again under the host lock before claims are written: a VM that is created just now
has no record yet, and its claims name its account. A VM that holds no claim (`reserve: running`, off) is only checked
with its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from vgpuctl.errors import NotAllowed
from vgpuctl.model.caller import Caller, Limits
from vgpuctl.model.numbers import count_text, format_mib
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, VmRecord
from vgpuctl.operations.controlled import check_fence
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Context
    from vgpuctl.ports.host import Host


class _Taken(Value):
    """What one VM takes: the size of each of its vGPUs, None where it is unknown."""

    account: str
    sizes_mib: tuple[int | None, ...]


def refuse_over_limits(
    context: Context, seen: Snapshot, *, records: Iterable[VmRecord] = (), claims: Iterable[Claim] = ()
) -> None:
    """Refuse what would be too much for the caller's account, or for all accounts together; check its fence, too.

    `records`: those that VMs are to get, or `claims` that are to be written.

    Raises:
        NotAllowed: naming the limit.
        Refused: as `check_fence`.
    """
    check_fence(context)
    caller = context.caller
    if caller is None or (caller.limits, caller.group_limits) == (Limits(), Limits()):
        return
    before = _count_by_vm(seen, (), ())
    after = _count_by_vm(seen, tuple(records), tuple(claims))
    own: Callable[[str], bool] = lambda account: account == caller.account  # noqa: E731
    _compare(caller, caller.limits, own, before, after, _key_of(caller), caller.account)
    _compare(caller, caller.group_limits, lambda _: True, before, after, "all_accounts", "all accounts together")


def count_removal(host: Host, context: Context) -> None:
    """Count a VM that the caller is about to delete or to refresh, whether that succeeds or not.

    Raises:
        NotAllowed: the account has deleted and refreshed as many in the last hour as it may.
    """
    caller = context.caller
    limit = None if caller is None else caller.limits.removals_per_hour
    if caller is None or limit is None or host.claims.count_removal(caller.uid, limit, host.clock.monotonic()):
        return
    raise NotAllowed(
        f"{caller.account} may delete or refresh {count_text(limit, 'VM')} in an hour, and did",
        hint=f"wait; root can raise removals_per_hour in agent: limits: {_key_of(caller)} in /etc/vgpuctl/host.yaml",
        rule="agent.limits.each_account.removals_per_hour",
        account=caller.account,
        limit=limit,
    )


def _key_of(caller: Caller) -> str:
    return f"each_account, or limits: accounts: {caller.account}"


def _count_by_vm(seen: Snapshot, records: tuple[VmRecord, ...], claims: tuple[Claim, ...]) -> dict[str, _Taken]:
    """Return what each VM of an account takes, by uuid.

    Of a VM with claims and a record the larger number counts: one that is just created has no record here, and one
    that starts elsewhere has other carriers in its record than in its claims.
    """
    replaced = {record.vm_uuid for record in records}
    by_record = {
        record.vm_uuid: _Taken(record.account, tuple(_size(seen, vgpu) for vgpu in record.vgpus))
        for record in (*(vm.record for vm in seen.vms if vm.uuid not in replaced), *records)
        if record is not None and record.account is not None
    }
    written = {claim.carrier: claim for claim in (*seen.claims, *claims) if claim.account is not None}
    ordered = sorted(written.values(), key=lambda claim: claim.vm_uuid)
    for uuid, group in groupby(ordered, key=lambda claim: claim.vm_uuid):
        held = [claim for claim in group if uuid not in replaced]
        recorded = by_record.get(uuid)
        if held and (recorded is None or len(held) > len(recorded.sizes_mib)):
            by_record[uuid] = _Taken(str(held[0].account), tuple(_size(seen, claim) for claim in held))
    return by_record


def _size(seen: Snapshot, vgpu: AssignedVgpu | Claim) -> int | None:
    """Return the framebuffer of a vGPU; that of its GPU if it is a whole one."""
    if vgpu.framebuffer_mib is not None or vgpu.carrier != vgpu.gpu:
        return vgpu.framebuffer_mib
    gpu = seen.gpu(vgpu.gpu)
    return None if gpu is None else gpu.framebuffer_mib


def _compare(
    caller: Caller,
    limits: Limits,
    is_counted: Callable[[str], bool],
    before: dict[str, _Taken],
    after: dict[str, _Taken],
    key: str,
    whose: str,
) -> None:
    had, has = (_totals(taken, is_counted) for taken in (before, after))
    for name in had:
        limit, old, new = getattr(limits, name), had[name], has[name]
        if limit is None or (new is not None and (new <= limit or new <= (old or 0))):
            continue
        text = f"the VMs of {whose} may take {_amount(name, limit)} on this host"
        asked = "the size of one of them is unknown" if new is None else f"they would take {_amount(name, new)}"
        raise NotAllowed(
            f"{text}, and {asked}",
            hint=f"delete a VM; root can raise agent: limits: {key} in /etc/vgpuctl/host.yaml",
            rule=f"agent.limits.{key.partition(',')[0]}.{'gpu_memory' if name == 'gpu_memory_mib' else name}",
            account=caller.account,
            limit=limit,
            requested=new,
        )


def _totals(taken: dict[str, _Taken], is_counted: Callable[[str], bool]) -> dict[str, int | None]:
    counted = [one for one in taken.values() if is_counted(one.account)]
    sizes = [size for one in counted for size in one.sizes_mib]
    known = [size for size in sizes if size is not None]
    memory = sum(known) if len(known) == len(sizes) else None
    return {"vms": len(counted), "vgpus": len(sizes), "gpu_memory_mib": memory}


def _amount(name: str, number: int) -> str:
    if name == "gpu_memory_mib":
        return f"{format_mib(number)} of GPU memory"
    return count_text(number, "VM" if name == "vms" else "vGPU")

# SPDX-License-Identifier: Apache-2.0
"""The operation by which the agent takes secrets out of a VM's seed, once its guest needs them no more."""

from __future__ import annotations

import logging

from vgpuctl.agent.operation import failure_text, may_succeed_later, wait_for_end
from vgpuctl.agent.operations import ROOT, AgentOperations
from vgpuctl.agent.protocol import RequestOptions
from vgpuctl.agent.request import CallRequest
from vgpuctl.errors import VgpuctlError
from vgpuctl.library.call_table import CALLS
from vgpuctl.model.vm import Vm

log = logging.getLogger("vgpuctl.agent")


async def clear_seed(operations: AgentOperations, vm: Vm, what: str) -> bool:
    """Take all secrets out of a VM's seed; return whether that is done, or will not be possible. `what`: to log."""
    generation = None if vm.record is None else vm.record.generation
    options = RequestOptions(if_generation=generation, override_controller=True)
    arguments = {"name": vm.uuid, "clear": True}
    try:
        operation = operations.begin(CallRequest(CALLS["refresh-license"], arguments, options, ROOT, vm_name=vm.name))
    except (OSError, VgpuctlError) as error:
        log.warning("the %s stays in the seed of VM %s for now: %s", what, vm.name, error)
        return False
    await wait_for_end(operation)
    document = operation.stored.document
    failure = failure_text(document)
    if failure is not None:
        log.warning("the %s stays in the seed of VM %s: %s", what, vm.name, failure)
    return failure is None or not may_succeed_later(document)

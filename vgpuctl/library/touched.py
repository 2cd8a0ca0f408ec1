# SPDX-License-Identifier: Apache-2.0
"""The VMs and GPUs that a call changes, for its audit entry: found by what is called, not by a search in texts.

A watched port works as before. A claim names its VM and its GPU, and libvirt's changing calls name a VM by uuid. A
write to sysfs names a carrier, which a claim assigns to a VM: so a stopped VM counts whose vGPU is removed and created
again. The result says the rest: a command that only changes host.yaml touches neither claims nor domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpuctl.model.address import address_sort_key, normalize_pci
from vgpuctl.model.vm import GPU_SETUP_CLAIM, HOST_VGPU_CLAIM_PREFIX, Claim
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

_CLAIM_CALLS = frozenset({"add", "replace", "remove", "add_drained_vm", "add_vm_in_progress", "all", "read"})
_SYSFS_CALLS = frozenset({"write", "write_uninterruptible"})
_DOMAIN_CALLS = frozenset(
    {
        "define", "undefine", "set_record", "start", "shutdown", "destroy", "reboot", "reset", "redefine",
        "attach_device", "detach_device",
    }
)  # fmt: skip
_READ_CALLS = frozenset({"domains", "find_domain", "define"})
"""Calls whose results say which name a uuid has."""


class Touched:
    """What one call changes. `vms` and `gpus` are sorted.

    `spec`: the fields of the spec file that it read, as the command line and the file give them; None: it read none.
    """

    def __init__(self) -> None:
        self.spec: Mapping[str, object] | None = None
        self._names: dict[str, str] = {}
        self._vms: set[str] = set()
        self._uuids: set[str] = set()
        self._claims: dict[str, Claim] = {}
        self._gpus: set[str] = set()

    @property
    def vms(self) -> tuple[str, ...]:
        """The names of the VMs; the uuid of one whose name was never read."""
        named = {self._names.get(text, text) for text in (*self._vms, *self._uuids)}
        return tuple(sorted(named))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs."""
        return tuple(sorted(self._gpus, key=address_sort_key))

    def watch(self, host: Host) -> Host:
        """Return the host whose claims and domains are watched."""
        claims: Any = _Watched(host.claims, _CLAIM_CALLS, self._on_claim)
        hypervisor: Any = _Watched(host.hypervisor, _DOMAIN_CALLS | _READ_CALLS, self._on_domain)
        sysfs: Any = _Watched(host.sysfs, _SYSFS_CALLS, self._on_write)
        return replace(host, claims=claims, hypervisor=hypervisor, sysfs=sysfs)

    def add_vms(self, names: Sequence[str]) -> None:
        """Add VMs that the caller named."""
        self._vms.update(names)

    def add_gpu(self, text: str) -> None:
        """Add a GPU that the caller named; a model is not an address."""
        address = normalize_pci(text)
        if address is not None:
            self._gpus.add(address)

    def add_error(self, facts: Mapping[str, object]) -> None:
        """Add the VM and the GPU that an error names, and the VMs that could not leave a GPU."""
        stays, gpu = facts.get("stays"), facts.get("gpu")
        for vm in (facts.get("vm"), *(stays if isinstance(stays, list) else ())):
            if isinstance(vm, str) and _is_vm(vm):
                self._vms.add(vm)
        if isinstance(gpu, str):
            self.add_gpu(gpu)

    def add_result(self, data: object) -> None:
        """Add the VMs and GPUs of a result: of a VM and its vGPUs, of several VMs, of a GPU, or of moves."""
        for record in _records(data):
            if hasattr(record, "address"):  # a GPU, with others' vGPUs on it
                self._gpus.add(str(record.address))
            elif hasattr(record, "from_gpu"):  # a move
                self._vms.add(str(record.vm))
                self._gpus |= {str(record.from_gpu), str(record.to_gpu)}
            elif hasattr(record, "vgpus"):
                self._vms.add(str(record.name))
                self._gpus.update(str(vgpu.gpu) for vgpu in record.vgpus)
            elif hasattr(record, "carrier"):  # a vGPU without a VM
                self._gpus.add(str(record.gpu))

    def _on_claim(self, call: str, arguments: tuple[Any, ...], result: Any) -> None:
        if call in ("all", "read"):
            claims = () if result is None else result if call == "all" else result.claims
            self._claims |= {claim.carrier: claim for claim in claims}
        elif call == "remove":
            self._add_carrier(arguments[0])
        elif isinstance(arguments[0], Claim):
            claim = arguments[0]
            self._claims[claim.carrier] = claim
            self._add_carrier(claim.carrier)
        else:
            self._uuids.add(str(arguments[0].vm_uuid))
            gpu = getattr(arguments[0], "gpu", None)
            if isinstance(gpu, str):
                self._gpus.add(gpu)

    def _on_write(self, call: str, arguments: tuple[Any, ...], result: object) -> None:
        """A path contains the carrier; the text that creates an mdev is its uuid."""
        path, text = arguments[:2]
        for word in (*path.split("/"), text.strip()):
            self._add_carrier(word)

    def _add_carrier(self, carrier: str) -> None:
        claim = self._claims.get(carrier)
        if claim is None:
            return
        self._gpus.add(claim.gpu)
        if _is_vm(claim.vm):
            self._vms.add(claim.vm)

    def _on_domain(self, call: str, arguments: tuple[Any, ...], result: Any) -> None:
        if call in _READ_CALLS:
            infos = result if isinstance(result, tuple) else () if result is None else (result,)
            self._names.update((info.uuid, info.name) for info in infos)
        if call == "define" and result is not None:
            self._vms.add(str(result.name))
        elif call in _DOMAIN_CALLS and arguments:
            self._uuids.add(str(arguments[0]))


class _Watched:
    """A port; `report` gets the name, the arguments and the result of each of these calls, None when it raised."""

    def __init__(
        self, port: object, calls: frozenset[str], report: Callable[[str, tuple[Any, ...], Any], None]
    ) -> None:
        self._port = port
        self._calls = calls
        self._report = report

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._port, name)
        if not callable(attribute) or name not in self._calls:
            return attribute

        def call(*arguments: Any, **named: Any) -> Any:
            result = None
            try:
                result = attribute(*arguments, **named)
            finally:
                self._report(name, arguments, result)
            return result

        return call


def _is_vm(holder: str) -> bool:
    """Return whether a claim's holder is a VM: not the setup of a GPU, and not a vGPU without a VM."""
    return holder != GPU_SETUP_CLAIM and not holder.startswith(HOST_VGPU_CLAIM_PREFIX)


def _records(data: object) -> Iterator[Any]:
    """Yield the records that a result consists of: one, or those of several VMs, GPUs or moves."""
    for target in getattr(data, "targets", ()):
        yield from _records(target.data)
    several = getattr(data, "vms", None) or getattr(data, "moves", None)
    if isinstance(several, tuple):
        yield from several
    elif data is not None and hasattr(data, "__dict__"):
        yield data

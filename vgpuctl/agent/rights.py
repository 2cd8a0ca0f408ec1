# SPDX-License-Identifier: Apache-2.0
"""Who may make which call, with which arguments. A member of the group `vgpuctl` is not root.

    rights = HostRights(ports)
    caller = rights.caller_of(uid)                          # for each request: groups are looked up again
    arguments = rights.check(caller, call, arguments, files)    # those to make the call with: paths are resolved
    settings = CallSettings(caller=caller, ...)             # the operations refuse VMs of others, and count limits

A request that waits is checked again when it begins: its user may have left the group, and host.yaml may have changed.

What is not listed here is refused: a call without a decision, an argument without one. Whose VM it is, and limits, are
no matter of this module: the operations check both where nobody can change them meanwhile (`operations.guards`,
`operations.limits`). A check may read files and ask libvirt: make it in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from vgpuctl.agent.allowed_files import AllowedFiles
from vgpuctl.agent.allowed_values import check_params, not_allowed
from vgpuctl.agent.callers import SystemUsers, Users, caller_of
from vgpuctl.agent.image_rights import refuse_image
from vgpuctl.agent.move_rights import MOVE_ARGUMENTS, check_move
from vgpuctl.config.agent_spec import AgentSpec
from vgpuctl.config.arguments import MAX_VMS, NONE, as_texts
from vgpuctl.config.device_rules import parse_nic
from vgpuctl.config.guest_rules import GUEST_LISTS
from vgpuctl.config.rules import TEMPLATE_PATTERN, is_path
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.config.vm_spec import NUMBERED_VM_SHAPE, VM_SHAPE, expand_names, parse_options, parse_vm_spec
from vgpuctl.errors import InvalidInput, NotAllowed
from vgpuctl.library.requests import read_spec_of_host
from vgpuctl.model.agent_service import OPERATORS_GROUP, VIEWERS_GROUP
from vgpuctl.model.caller import Caller, Rights

if TYPE_CHECKING:
    from vgpuctl.library.call_table import LibraryCall
    from vgpuctl.model.image_copy import ImageRequest
    from vgpuctl.ports.host import Host


class Decision(StrEnum):
    """Who may make a call. `member`: members, for VMs of their own, which the operation checks."""

    EVERYBODY = "everybody"
    MEMBER = "member"
    OPERATOR = "operator"
    FLEET = "fleet"
    ROOT = "root"


_MAY: Mapping[Decision, frozenset[Rights]] = {
    Decision.EVERYBODY: frozenset(Rights),
    Decision.MEMBER: frozenset({Rights.OPERATOR, Rights.FLEET, Rights.MEMBER}),
    Decision.OPERATOR: frozenset({Rights.OPERATOR}),
    Decision.FLEET: frozenset({Rights.FLEET}),
    Decision.ROOT: frozenset(),
}

READS = (
    "advise-sizes", "advise-workload", "capacity", "check-image", "check-vm-change", "diff", "doctor", "explain",
    "export-host", "find-causes", "fits", "import-job", "import-vm", "instance-profiles", "list-deleted",
    "list-gpus", "list-images", "list-profiles", "list-vgpus", "list-vms", "log", "monitoring", "plan-moves",
    "pool-names", "print-xml", "select-gpus", "select-vgpus", "select-vms", "show-gpu", "show-migration", "show-vm",
    "show-vms",
    "top", "usage-report", "vgpu-names", "vm-names",
)  # fmt: skip
GUEST_READS = ("guest-processes", "show-address", "show-console", "wait")
"""Consoles, what a guest's agent tells, and what runs in a guest: the operations show those of one's own VMs alone."""
VM_CHANGES = (
    "allow-logon", "attach-gpu", "attach-vgpu", "create-vm", "create-vms", "delete-vm", "detach-gpu", "detach-vgpu",
    "ensure-vm", "ensure-vms", "message-vm", "prepare-vm", "reboot-vm", "refresh-license", "refresh-vm", "resize-disk",
    "save-vm", "set-vm", "shutdown-in", "start-vm", "stop-vm",
)  # fmt: skip
OPERATORS_CHANGES = ("move-vms",)
"""It stops and starts VMs of whatever account, as the plan needs."""
FLEET_CHANGES = ("make-account", "mark-desktop", "set-password")
"""They say to whom a desktop belongs, who has an account there, and that it is to be refreshed."""
MOVES = ("finish-migration", "migrate-out", "offer-vm", "prepare-incoming")
"""A controller makes them on both hosts of a move, for VMs of its account (`move_rights`)."""
HOST_CHANGES = (
    "adopt", "apply", "cordon", "create-vgpu", "delete-vgpu", "end-migration", "ensure-vgpu", "fix-problems",
    "import-host", "install-host", "migrate-vm", "purge-deleted", "reconcile-host", "restore-disk", "restore-host",
    "set-mig", "set-mixed-size", "set-mode", "set-scheduler", "uncordon", "uninstall-host",
)  # fmt: skip
"""What changes the host. A vGPU without a VM is an entry of host.yaml: it has no account, and any VM can be given it.
adopt takes over somebody's VM, and others' VMs are root's.
import-host reads files and folders of other programs, for root's host.yaml."""

DECISIONS: Mapping[str, Decision] = {
    **dict.fromkeys((*READS, *GUEST_READS), Decision.EVERYBODY),
    **dict.fromkeys(VM_CHANGES, Decision.MEMBER),
    **dict.fromkeys(OPERATORS_CHANGES, Decision.OPERATOR),
    **dict.fromkeys((*FLEET_CHANGES, *MOVES), Decision.FLEET),
    **dict.fromkeys(HOST_CHANGES, Decision.ROOT),
}
"""Who may make each call of the library; a call that is not here is root's."""

SPEC_CALLS = frozenset({"create-vm", "create-vms", "ensure-vm", "ensure-vms", "print-xml"})
"""They take the fields of a VM spec, or a spec file."""
IMAGE_CALLS = frozenset({"check-image", "refresh-vm"})
ROOTS_ARGUMENTS = frozenset(
    {
        "peer",  # a name that errors give another host
        "when_off",  # the agent makes the change later, without the limits of an account
    }
)
CHECKED_ARGUMENTS = frozenset({
    "domain_join", "file", "files", "force_console", "force_reset", "guest_driver", "k8s_join", "keep_disks", "license",
    "name", "networks", "pattern",
})  # fmt: skip
"""Arguments that this module checks in every call, besides the fields of a VM spec; in some calls also a path."""
HARMLESS_ARGUMENTS = frozenset({
    "assume", "bandwidth_mib_s", "by", "check", "checks", "clear", "code", "copies_disks", "count", "defragment",
    "disk", "disks", "drain", "dry_run", "error", "event", "everything", "failed", "force", "from_gpu", "from_image",
    "gpu", "gpus", "job", "labels", "limits_ms", "lines", "managed_only", "max_moves", "migration_id", "minutes",
    "names", "nobody", "offline", "outcome", "owner", "parallel", "password", "pool", "profile", "profiles", "seen",
    "seen_by_host", "sets", "since", "size",
    "start", "state", "targets", "text", "timeout_seconds", "unassigned", "units", "user", "vgpus", "vm",
    "wait_for", "wait_timeout", "workload",
})  # fmt: skip
"""Arguments with names, numbers and choices, which the library checks: none of them is a path that something opens."""
HARMLESS_FIELDS = frozenset({
    "name", "profile", "gpu", "gpus", "not_gpu", "numa_node", "spread_group", "scheduler", "placement", "memory",
    "vcpus", "hugepages", "cpu_pin", "display", "os", "hotplug_slots", "pci_window", "reserve", "labels", "owner",
    "autostart", "autostart_storage", "start_order", "guest_helper", "guest_sharing",
    "off_after_setup",
})  # fmt: skip
"""Fields of a VM spec that name nothing of the host but GPUs and CPUs; limits bound how many vGPUs."""
CHECKED_FIELDS = frozenset({
    "image", "disk", "cdrom", "cloud_init", "network_config", "networks", "storage_pool", "vgpu_params", "template",
    "mode", "force_console", "force_reset", "license", "guest_driver", "k8s_join", "domain_join",
})  # fmt: skip
_CONTENT_FIELDS = ("cloud_init", "network_config")
_MAKES_VM = frozenset({"profile", "mode", "gpus", "gpu"})
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def check(
    caller: Caller,
    call: str,
    arguments: Mapping[str, Any],
    policy: AgentSpec,
    host: Host,
    files: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the arguments with which the caller's call is made: paths are resolved.

    `files`: the texts of files that the request sends, by the name that its arguments use. The call must read no other
    ones; None: it reads them from this host, and members name none.

    Raises:
        NotAllowed: the caller may not make this call, or not with these arguments; facts have the `rule`.
        InvalidInput, NotFound: as the call would.
    """
    if caller.rights is Rights.ROOT:
        return dict(arguments)
    _check_call(caller, call)
    given = {name for name, value in arguments.items() if value or name not in ROOTS_ARGUMENTS}
    if unknown := sorted(given - allowed_arguments(call)):
        raise NotAllowed(f"{call}: {', '.join(unknown)} is root's", hint="omit it, or ask root", rule="root")
    return _Check(caller, call, policy, host, files).run(arguments)


def allowed_arguments(call: str) -> frozenset[str]:
    """Return the arguments of a call that have a decision: harmless ones, and those that are checked in this call."""
    checked = CHECKED_ARGUMENTS | HARMLESS_ARGUMENTS | HARMLESS_FIELDS
    checked |= CHECKED_FIELDS if call in SPEC_CALLS else frozenset()
    checked |= {"image"} if call in IMAGE_CALLS else set()
    checked |= MOVE_ARGUMENTS.get(call, frozenset())
    return checked | ({"paths"} if call == "list-images" else set())


def _check_call(caller: Caller, call: str) -> None:
    decision = DECISIONS.get(call, Decision.ROOT)
    if caller.rights in _MAY[decision]:
        return
    texts = {
        Decision.MEMBER: "members of the group vgpuctl may do it; you may look at this host",
        Decision.OPERATOR: f"agent: {{accounts: {{{caller.account}: operator}}}} in /etc/vgpuctl/host.yaml allows it",
        Decision.FLEET: f"agent: {{accounts: {{{caller.account}: fleet}}}} in /etc/vgpuctl/host.yaml allows it",
    }
    keys = dict.fromkeys((Decision.OPERATOR, Decision.FLEET), "agent.accounts")
    rule = {Decision.MEMBER: "group", **keys}.get(decision, "root")
    hint = texts.get(decision, f"as root: sudo vgpuctl {call}; no entry of host.yaml allows it to others")
    raise NotAllowed(f"{call} is not allowed to {caller.account}", hint=hint, rule=rule, call=call)


class _Check:
    """The check of one request of a user who is not root."""

    def __init__(
        self, caller: Caller, call: str, policy: AgentSpec, host: Host, files: Mapping[str, str] | None
    ) -> None:
        self._caller = caller
        self._call = call
        self._allow = policy.allow
        self._host = host
        self._sent = files
        self._files = AllowedFiles(host, policy.allow)

    def run(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments to use."""
        checked = dict(arguments)
        _refuse_forced(arguments)
        if arguments.get("keep_disks") and self._caller.rights is not Rights.OPERATOR:
            raise not_allowed(
                "a disk that is kept has no account any more, so everybody who may use its pool could read it",
                "agent.accounts",
                f"copy what you need out of it; or agent: {{accounts: {{{self._caller.account}: operator}}}}",
            )
        if self._call in SPEC_CALLS:
            return checked | self._check_spec(arguments)
        checked |= check_move(self._host, self._allow, self._call, arguments)
        if arguments.get("file") is not None:
            self._require_sent(str(arguments["file"]))
        for name in as_texts("files", arguments.get("files") or ()):
            self._require_sent(name)
        if self._call in IMAGE_CALLS:
            image = parse_options(image=arguments.get("image")).get("image")
            return checked if image is None else checked | {"image": self._files.image(image)}
        if self._call == "list-images":
            paths = arguments.get("paths") or ()
            texts = (paths,) if isinstance(paths, str) else tuple(paths)
            return checked | {"paths": tuple(self._files.resolve(str(path)) for path in texts)} if texts else checked
        if self._call == "attach-gpu":
            self._check_listed("mode", "passthrough", "modes")
        if arguments.get("networks"):
            self._check_networks(parse_options(networks=arguments["networks"])["networks"])
        self._check_setup(arguments)
        return checked

    def _check_spec(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the fields of a VM spec, those of a file too; return those that are used instead."""
        spec = self._read_spec(arguments)
        others = sorted(spec.keys() - CHECKED_FIELDS - HARMLESS_FIELDS)
        if others:
            raise NotAllowed(f"{', '.join(others)} is root's", hint="omit it, or ask root", rule="root")
        for field in _CONTENT_FIELDS:
            if field in spec and is_path(spec[field]):
                self._require_sent(spec[field])
        _refuse_forced(spec)
        if not re.fullmatch(TEMPLATE_PATTERN, spec.get("template", "vm"), re.ASCII):
            raise NotAllowed("template: a template is named, without a path", hint="omit it", rule="root")
        self._check_names(arguments, spec)
        check_params(self._allow, spec.get("vgpu_params", {}).items())
        self._check_listed("mode", spec.get("mode", "vgpu"), "modes")
        self._check_setup(spec)
        defaults = read_spec_of_host(self._host).defaults
        makes_vm = bool(spec.keys() & _MAKES_VM) or not self._call.startswith("ensure")
        if "networks" in spec or (makes_vm and getattr(defaults, "networks", None) is None):
            self._check_networks(spec.get("networks", ("default",)))
        if "storage_pool" in spec or (makes_vm and getattr(defaults, "storage_pool", None) is None):
            self._check_listed("the storage pool", spec.get("storage_pool", "default"), "pools")
        return self._resolve_paths(spec)

    def _read_spec(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields as the call reads them: those of the file, and those given besides, which count."""
        given = {name: arguments[name] for name in FIELDS.keys() & arguments.keys() if name != "name"}
        spec: dict[str, Any] = {}
        file = arguments.get("file")
        if file is not None:
            self._require_sent(str(file))
            text = (self._sent or {}).get(str(file))  # one that is missing the call itself asks for
            shape = NUMBERED_VM_SHAPE if self._call == "ensure-vms" else VM_SHAPE
            spec = dict(parse_vm_spec(text.replace("\r\n", "\n"), str(file), shape)) if text is not None else {}
        return spec | dict(parse_options(**given))

    def _require_sent(self, name: str) -> None:
        if self._sent is None:
            raise NotAllowed(
                f"{self._call}: a file of this host is not read for {self._caller.account}",
                hint="send the content of the file with the request, as the vgpuctl command does",
                rule="root",
                path=name,
            )

    def _check_names(self, arguments: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        """Refuse a name that looks like a VM's uuid: commands find VMs by both."""
        name = arguments.get("pattern") or spec.get("name") or arguments.get("name")
        count = arguments.get("count")
        names: tuple[object, ...] = (name,)
        if isinstance(count, int) and name is not None:
            names = expand_names(name, min(count, MAX_VMS))
        for one in names:
            if isinstance(one, str) and _UUID.fullmatch(one.strip()):
                raise NotAllowed(
                    f"'{one}' is the form of a VM's uuid, no name", hint="choose another name", rule="root"
                )

    def _check_setup(self, fields: Mapping[str, Any]) -> None:
        """Refuse what the guest is to get of the host, and host.yaml does not list."""
        for field, (what, key) in GUEST_LISTS.items():
            if fields.get(field) not in (None, "", NONE):
                self._check_listed(f"the {what}", str(fields[field]), key)

    def _check_listed(self, what: str, value: str, key: str) -> None:
        """Refuse a value that host.yaml does not list for members."""
        if value not in getattr(self._allow, key):
            raise not_allowed(f"{what} {value} is not allowed", f"agent.allow.{key}", value)

    def _check_networks(self, cards: tuple[str, ...]) -> None:
        for card in cards:
            if card == "none":
                continue
            self._check_listed("the network", parse_nic(card).network_text, "networks")

    def _resolve_paths(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        used: dict[str, Any] = {}
        for field in ("image", "cdrom"):
            if spec.get(field) is not None:
                used[field] = self._files.image(spec[field])
        if any(is_path(disk) for disk in spec.get("disk", ())):
            used["disk"] = tuple(self._files.image(disk) if is_path(disk) else disk for disk in spec["disk"])
        return used


def _refuse_forced(fields: Mapping[str, Any]) -> None:
    if fields.get("force_console"):
        raise NotAllowed("force_console: the host's console is root's", hint="omit it", rule="root")
    if fields.get("force_reset"):
        raise NotAllowed("force_reset: only root may risk a GPU", hint="omit it", rule="root")


class HostRights:
    """The rights on one host: from its groups and its host.yaml, both read for each request."""

    def __init__(self, host: Host, users: Users | None = None, *, owner: int = 0) -> None:
        """`owner`: the user who runs the agent; it may do what this user may do anyway."""
        self._host = host
        self._users = users or SystemUsers()
        self._owner = owner

    def caller_of(self, uid: int) -> Caller:
        """Return who a user id is. A host.yaml that cannot be read gives nobody more than a member's rights.

        Raises:
            NotAllowed: this user may do nothing.
        """
        if uid == self._owner:
            return Caller(uid, self._users.name_of(uid) or f"uid {uid}", Rights.ROOT)
        try:
            policy = read_spec_of_host(self._host).agent
        except InvalidInput:
            policy = AgentSpec()
        caller = caller_of(uid, policy, self._users)
        if caller is None:
            raise NotAllowed(
                f"uid {uid} is neither in the group {OPERATORS_GROUP} nor in {VIEWERS_GROUP}",
                hint=f"usermod -aG {OPERATORS_GROUP} USER, or {VIEWERS_GROUP} for who only looks",
                rule="group",
            )
        return caller

    def check_image(self, caller: Caller, request: ImageRequest) -> None:
        """Refuse an image that host.yaml does not allow to the caller, who controls a fleet, or is root.

        Raises:
            NotAllowed: it does not. InvalidInput: host.yaml cannot be read.
        """
        if caller.rights is not Rights.ROOT:
            refuse_image(self._host, read_spec_of_host(self._host).agent.allow, request)

    def check(
        self,
        caller: Caller,
        call: LibraryCall,
        arguments: Mapping[str, Any],
        files: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the arguments to make a call with; see `check`.

        Raises:
            NotAllowed, InvalidInput, NotFound: as `check`; also when host.yaml cannot be read and something changes.
        """
        if caller.rights is Rights.ROOT:
            return dict(arguments)
        _check_call(caller, call.name)
        try:
            policy = read_spec_of_host(self._host).agent
        except InvalidInput:
            if DECISIONS[call.name] is not Decision.EVERYBODY:
                raise
            policy = AgentSpec()
        return check(caller, call.name, arguments, policy, self._host, files)

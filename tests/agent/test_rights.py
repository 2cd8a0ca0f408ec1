# SPDX-License-Identifier: Apache-2.0
"""Attacks of members of the group vgpuctl: what they may not name, and what changes between the check and the use.

Size: the attacks on each kind of argument share the same host and policy.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.callers import ADA, BOB, FLEET, OPERATOR, ROOT, VIEWER, host_of
from tests.hosts import SimulatedHost, open_sim_host
from tests.meanwhile import unchanged, with_calls
from tests.unit.host.test_backing_chain import qcow2
from vgpuctl.agent import rights
from vgpuctl.agent.callers import caller_of
from vgpuctl.agent.rights import DECISIONS, HOST_CHANGES, Decision, HostRights, allowed_arguments, check
from vgpuctl.config.agent_spec import AgentSpec, LimitsSpec
from vgpuctl.config.allow_spec import AllowSpec
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.errors import HostCannot, InvalidInput, LibvirtFailed, NotAllowed, NotFound
from vgpuctl.host.backing_chain import read_image_files
from vgpuctl.host.images import ImageInspector
from vgpuctl.host.trusted_path import resolve_path
from vgpuctl.library import GpuHost, fields
from vgpuctl.model.caller import Caller, Limits, Rights
from vgpuctl.model.port_values import AuditQuery, ResolvedPath
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SPEC: Any = {"profile": "A100-4C", "memory": "1GiB"}
DRIVER = "/srv/drivers/NVIDIA-Linux-x86_64-580.159.03-grid.run"
ALLOW = AllowSpec(("/srv/images",), ("default",), ("default", "bridge=br0,vlan=30"), ("frame_rate_limiter", "a=1"))
POLICY = AgentSpec(ALLOW)
MEMBERS = (ADA, FLEET, OPERATOR)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path)


def allowed(
    host: SimulatedHost | Host,
    call: str,
    arguments: Mapping[str, Any],
    caller: Caller = ADA,
    policy: AgentSpec = POLICY,
    files: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return check(caller, call, arguments, policy, host.ports if isinstance(host, SimulatedHost) else host, files)


def refused(
    host: SimulatedHost | Host, call: str, arguments: Mapping[str, Any], text: str = ".", **more: Any
) -> NotAllowed:
    with pytest.raises(NotAllowed, match=text) as caught:
        allowed(host, call, arguments, **more)
    assert (caught.value.code, caught.value.status) == ("not-allowed", 3)
    assert caught.value.hint
    assert caught.value.facts["rule"]
    return caught.value


# ------------------------------------------------------------------ which calls

CALLS = sorted(
    name.replace("_", "-")
    for name in dir(GpuHost)
    if not name.startswith("_") and hasattr(getattr(GpuHost, name), "__wrapped__")
)


def parameters_of(call: str) -> set[str]:
    """Return the names of a call's arguments, fields of a VM among them."""
    names: set[str] = set()
    for parameter in [*inspect.signature(getattr(GpuHost, call.replace("-", "_"))).parameters.values()][1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            names |= set(getattr(fields, str(parameter.annotation)[len("Unpack[") : -1]).__annotations__)
        else:
            names.add(parameter.name)
    return names


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_the_library_has_a_decision_and_so_has_each_of_its_arguments(call: str) -> None:
    assert call in DECISIONS, "decide in vgpuctl/agent/rights.py who may make it"
    if DECISIONS[call] is not Decision.ROOT:
        assert parameters_of(call) - rights.ROOTS_ARGUMENTS <= allowed_arguments(call), (
            "decide whether it names something of the host"
        )


def test_every_field_of_a_vm_has_one_decision() -> None:
    assert set(FIELDS) == rights.CHECKED_FIELDS | rights.HARMLESS_FIELDS
    assert not rights.CHECKED_FIELDS & rights.HARMLESS_FIELDS


def test_who_may_make_which_call(host: SimulatedHost) -> None:
    may = {
        caller.rights: {call for call in (*CALLS, "new-call") if _may(host, caller, call)}
        for caller in (ROOT, *MEMBERS, VIEWER)
    }
    assert may[Rights.ROOT] == {*CALLS, "new-call"}
    assert (
        may[Rights.MEMBER]
        == may[Rights.FLEET] - {*rights.FLEET_CHANGES, *rights.MOVES}
        == may[Rights.OPERATOR] - {"move-vms"}
    )
    assert may[Rights.VIEWER] == {call for call in CALLS if DECISIONS[call] is Decision.EVERYBODY}
    assert not may[Rights.OPERATOR] & {*HOST_CHANGES, "new-call"}
    assert may[Rights.MEMBER] - may[Rights.VIEWER] == set(rights.VM_CHANGES)


def _may(host: SimulatedHost, caller: Caller, call: str) -> bool:
    try:
        rights._check_call(caller, call) if caller is not ROOT else check(ROOT, call, {}, AgentSpec(), host.ports)
    except NotAllowed:
        return False
    return True


@pytest.mark.parametrize("call", [*HOST_CHANGES, "new-call", "__init__", "create_vm", ""])
def test_what_changes_the_host_and_what_nobody_decided_is_roots(host: SimulatedHost, call: str) -> None:
    for caller in (*MEMBERS, VIEWER):
        assert refused(host, call, {}, "is not allowed to", caller=caller).facts["rule"] == "root"
    assert check(ROOT, call, {"a": "/etc/shadow"}, AgentSpec(), host.ports) == {"a": "/etc/shadow"}


def test_an_argument_without_a_decision_is_roots(host: SimulatedHost) -> None:
    refused(host, "start-vm", {"name": "a", "template_path": "/etc/shadow"}, "start-vm: template_path is root's")
    refused(host, "start-vm", {"name": "a", "image": IMAGE}, "image is root's")
    refused(host, "set-vm", {"name": "a", "vgpu_params": "a=1"}, "vgpu_params is root's")


def test_a_refusal_names_the_line_that_would_allow_it(host: SimulatedHost) -> None:
    for call, arguments, hint in (
        ("move-vms", {}, "agent: {accounts: {ada: operator}}"),
        ("create-vm", {**SPEC, "networks": "lan"}, "agent: {allow: {networks: [lan]}}"),
        ("create-vm", {**SPEC, "storage_pool": "fast"}, "agent: {allow: {pools: [fast]}}"),
        ("create-vm", {**SPEC, "license": "cad"}, "agent: {allow: {licenses: [cad]}}"),
        ("create-vm", {**SPEC, "guest_driver": DRIVER}, f"agent: {{allow: {{drivers: [{DRIVER}]}}}}"),
        ("create-vm", {"mode": "passthrough", "gpu": "A100"}, "agent: {allow: {modes: [passthrough]}}"),
        ("create-vm", {**SPEC, "vgpu_params": "b=2"}, "agent: {allow: {vgpu_params: [b]}}"),
        ("create-vm", {**SPEC, "image": "/etc/shadow"}, "agent: {allow: {folders: [FOLDER]}}"),
        ("apply", {}, "sudo vgpuctl apply"),
    ):
        assert hint in str(refused(host, call, arguments).hint)


# ------------------------------------------------------------------ paths on the simulated host

OUTSIDE = [
    "/etc/shadow",
    "/srv/images/../../etc/shadow",
    "/srv//images/x",
    "/srv/images/./x",
    "/srv/imagesx/a",
    "/srv/images",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("field", ["image", "cdrom", "disk"])
def test_no_file_outside_of_the_folders_is_an_image_an_iso_or_a_disk(
    host: SimulatedHost, field: str, path: str
) -> None:
    value: Any = ["20GiB", path] if field == "disk" else path
    for call in ("create-vm", "create-vms", "ensure-vm", "print-xml"):
        for caller in MEMBERS:
            error = refused(host, call, {**SPEC, field: value}, "is in no folder that host.yaml allows", caller=caller)
            assert error.facts["rule"] == "agent.allow.folders"
    refused(host, "refresh-vm", {"name": "a", "image": path}, "is in no folder")
    refused(host, "check-image", {"image": path}, "is in no folder", caller=VIEWER)
    refused(host, "list-images", {"paths": [IMAGE, path]}, "is in no folder", caller=VIEWER)
    refused(host, "list-images", {"paths": path}, "is in no folder")


def test_a_path_outside_is_not_even_looked_at(host: SimulatedHost) -> None:
    """What is there, or hangs there, is no business of a member."""

    def fail(path: str) -> None:
        raise AssertionError(path)

    ports = with_calls(host.ports, "storage", resolve=fail, image=fail)
    refused(ports, "create-vm", {**SPEC, "image": "/net/server/x"}, "is in no folder")


def test_a_file_below_a_folder_or_in_a_pool_is_allowed_and_a_missing_one_is_not_found(host: SimulatedHost) -> None:
    given = {**SPEC, "image": IMAGE, "cdrom": "/srv/images/debian-12-netinst.iso"}
    assert allowed(host, "create-vm", given) == given
    with pytest.raises(NotFound, match="file /srv/images/none does not exist"):
        allowed(host, "create-vm", {**SPEC, "image": "/srv/images/none"})
    host.ports.storage.create_pool("images", "/srv/images")
    pool = AgentSpec(AllowSpec(pools=("default", "images"), networks=("default",)))
    assert allowed(host, "create-vm", given, policy=pool) == given
    refused(host, "create-vm", given, policy=AgentSpec(AllowSpec(pools=("default",), networks=("default",))))


@pytest.mark.parametrize("files", [None, {}])
def test_no_file_of_the_host_is_user_data_or_a_spec(host: SimulatedHost, files: Mapping[str, str] | None) -> None:
    """Without content that the client sends they are refused; with it the call reads what was sent and nothing else."""
    for call, arguments in (
        ("create-vm", {**SPEC, "cloud_init": "/etc/shadow"}),
        ("create-vm", {**SPEC, "network_config": "/etc/shadow"}),
        ("create-vms", {**SPEC, "pattern": "a-{}", "count": 2, "cloud_init": "/etc/{}"}),
        ("ensure-vm", {"file": "/etc/shadow"}),
        ("ensure-vm", {"file": "-"}),
        ("ensure-vms", {"file": "/proc/1/environ", "count": 1}),
        ("diff", {"file": "/etc/shadow"}),
        ("import-vm", {"files": ["a.vmx", "/etc/shadow"]}),
    ):
        if files is None:
            refused(host, call, arguments, "a file of this host is not read for ada")
        else:
            assert allowed(host, call, arguments, files=files).items() >= arguments.items()
    inline = {**SPEC, "network_config": {"version": 2}}
    assert allowed(host, "create-vm", inline) == inline


def test_a_spec_that_the_client_sends_is_checked_like_its_arguments(host: SimulatedHost) -> None:
    for text, why in (
        ("image: /etc/shadow", "/etc/shadow is in no folder"),
        ("disk: [/etc/shadow]", "/etc/shadow is in no folder"),
        ("cdrom: /etc/shadow", "/etc/shadow is in no folder"),
        ("networks: {bridge: br0}", "the network bridge=br0 is not allowed"),
        ("mode: passthrough", "mode passthrough is not allowed"),
        ("force_console: true", "the host's console is root's"),
        ("force_reset: true", "only root may risk a GPU"),
        ("storage_pool: fast", "the storage pool fast is not allowed"),
        ("vgpu_params: {b: 1}", "the plugin parameter b=1 is not allowed"),
    ):
        spec = {"s.yaml": f"name: a\n{'' if 'mode' in text else 'profile: A100-4C'}\n{text}\n"}
        refused(host, "ensure-vm", {"file": "s.yaml"}, why, files=spec)
    spec = {"s.yaml": f"name: a\nprofile: A100-4C\nimage: {IMAGE}\n"}
    assert allowed(host, "ensure-vm", {"file": "s.yaml"}, files=spec) == {"file": "s.yaml", "image": IMAGE}
    with pytest.raises(InvalidInput, match="unknown field"):
        allowed(host, "ensure-vm", {"file": "s.yaml"}, files={"s.yaml": "name: a\nxml: <domain/>\n"})
    more = {"file": "s.yaml", "image": "/etc/shadow"}
    refused(host, "ensure-vm", more, "/etc/shadow is in no folder", files=spec)


@pytest.mark.parametrize("template", ["../../etc/shadow", "/etc/shadow", "a/b", "a.xml.j2", "..", "a\n", "a\0"])
def test_a_template_is_an_installed_one_by_name(host: SimulatedHost, template: str) -> None:
    for call in ("create-vm", "ensure-vm"):
        with pytest.raises((NotAllowed, InvalidInput), match="template"):
            allowed(host, call, {**SPEC, "template": template})
    assert allowed(host, "create-vm", {**SPEC, "template": "vm"})["template"] == "vm"


def test_networks_pools_parameters_and_modes_are_those_of_host_yaml(host: SimulatedHost) -> None:
    for good in (
        {"networks": "default"},
        {"networks": "none"},
        {"networks": [{"bridge": "br0", "vlan": 30, "model": "e1000e"}, "default"]},
        {"vgpu_params": ["frame_rate_limiter=0", "a=1"]},
        {"storage_pool": "default"},
    ):
        assert allowed(host, "create-vm", {**SPEC, **good}).items() >= good.items()
    for bad in (
        {"networks": "lan"},
        {"networks": ["default", "lan"]},
        {"networks": "bridge=br0"},
        {"networks": {"bridge": "br0", "vlan": 31}},
        {"networks": "bridge=br0,vlan=31,mac=52:54:00:00:00:01"},
        {"networks": {"network": "lan"}},
        {"vgpu_params": {"a": "2"}},
        {"vgpu_params": "cuda=1"},
        {"storage_pool": "other"},
        {"mode": "sriov", "gpu": "A100", "profile": None},
        {"mode": "passthrough", "gpu": "A100", "profile": None},
        {"force_console": True},
    ):
        for caller in MEMBERS:
            refused(host, "create-vm", {**SPEC, **bad}, caller=caller)
    refused(host, "set-vm", {"name": "a", "networks": "lan"}, "the network lan")
    refused(host, "check-vm-change", {"networks": "lan"}, "the network lan")
    for call in ("set-vm", "check-vm-change", "create-vm", "ensure-vm"):
        spec = {**(SPEC if call != "set-vm" and call != "check-vm-change" else {}), "name": "a"}
        for field, what, value, key in (
            ("license", "license", "cad", "licenses"),
            ("guest_driver", "driver", DRIVER, "drivers"),
            ("k8s_join", "cluster", "lab", "clusters"),
            ("domain_join", "domain", "corp", "domains"),
        ):
            given = {**spec, field: value}
            refused(host, call, given, f"the {what} {value} is not allowed")
            assert allowed(host, call, given, policy=AgentSpec(replace(ALLOW, **{key: (value,)})))
            assert allowed(host, call, given | {field: "none"})
    refused(host, "attach-gpu", {"name": "a", "gpus": 1}, "mode passthrough")
    whole = AgentSpec(replace(ALLOW, modes=("vgpu", "passthrough")))
    assert allowed(host, "attach-gpu", {"name": "a", "gpus": 1}, policy=whole)
    refused(host, "attach-gpu", {"name": "a", "gpus": 1, "force_console": True}, "force_console", policy=whole)


def test_what_is_not_given_must_be_allowed_too_unless_root_made_it_the_default(host: SimulatedHost) -> None:
    nothing = AgentSpec()
    refused(host, "create-vm", SPEC, "the network default", policy=nothing)
    refused(host, "ensure-vm", SPEC, "the network default", policy=nothing)
    refused(host, "create-vm", {**SPEC, "networks": "none"}, "the storage pool default", policy=nothing)
    assert allowed(host, "ensure-vm", {"name": "a", "state": "started"}, policy=nothing)
    host.sim.host_file.write_text("version: 1\ndefaults: {networks: lan, storage_pool: fast}\n")
    assert allowed(host, "create-vm", SPEC, policy=nothing) == SPEC
    refused(host, "create-vm", {**SPEC, "networks": "lan"}, "the network lan", policy=nothing)


def test_disks_of_vms_are_nobodys_image(host: SimulatedHost) -> None:
    host_of(host, ADA).create_vm("adas", image=IMAGE, start=False, **SPEC)
    disk = next(str(d.path) for d in host_of(host, None).show_vm("adas").data.disks)
    for caller in (BOB, ADA, OPERATOR):
        for field in ("image", "cdrom", "disk"):
            refused(host, "create-vm", {**SPEC, field: disk}, "a disk of VM adas", caller=caller)
        refused(host, "refresh-vm", {"name": "x", "image": disk}, "a disk of VM adas", caller=caller)
    assert allowed(host, "create-vm", {**SPEC, "image": IMAGE})["image"] == IMAGE, "its base is still an image"
    host_of(host, None).delete_vm("adas")
    refused(host, "delete-vm", {"name": "x", "keep_disks": True}, "has no account any more", caller=BOB)
    assert allowed(host, "delete-vm", {"name": "x", "keep_disks": True}, caller=OPERATOR)["keep_disks"]


def test_without_libvirt_no_file_is_allowed_since_a_vm_may_have_it(tmp_path: Path) -> None:
    text = f"version: 1\nlibvirt: {{running: false}}\nimages: [{{path: {IMAGE}}}]\ngpus: [{{model: A100}}]\n"
    down = open_sim_host(tmp_path / "down", text=text)
    ports = with_calls(down.ports, "storage", image=open_sim_host(tmp_path / "up").ports.storage.image)
    with pytest.raises((HostCannot, LibvirtFailed)):
        allowed(ports, "create-vm", {**SPEC, "image": IMAGE})


def test_a_name_that_is_another_vms_uuid_is_refused(host: SimulatedHost) -> None:
    uuid = host_of(host, None).create_vm("roots", **SPEC).data.uuid
    for arguments in ({"name": uuid}, {"name": str(uuid).upper()}):
        refused(host, "create-vm", {**SPEC, **arguments}, "is the form of a VM's uuid")
    pattern = f"{str(uuid)[:-2]}{{:02}}"
    refused(host, "create-vms", {**SPEC, "pattern": pattern, "count": 99}, "is the form of a VM's uuid")
    refused(host, "create-vms", {**SPEC, "pattern": pattern, "count": 10**12}, "is the form of a VM's uuid")


# ------------------------------------------------------------------ real files


class Files:
    """Real files below a directory that stands for `/`, as the storage of a host."""

    def __init__(self, root: Path, host: SimulatedHost) -> None:
        self.root = root
        self.images = root / "srv" / "images"
        self.images.mkdir(parents=True)
        (root / "etc").mkdir()
        (root / "etc" / "shadow").write_bytes(b"root:secret:" + bytes(500))
        self.put("base.qcow2", qcow2())
        self.tidy()
        inspector = ImageInspector(lambda: None, lambda name: None)
        self.ports = with_calls(
            host.ports,
            "storage",
            resolve=self._resolve,
            image=lambda path: inspector.inspect(path, lambda: [str(self.root)]),
            image_files=read_image_files,
        )
        self.policy = AgentSpec(replace(ALLOW, folders=(str(self.images),)))

    def put(self, name: str, content: bytes) -> str:
        (self.images / name).write_bytes(content)
        return str(self.images / name)

    def tidy(self) -> None:
        for path in (self.root, *self.root.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)

    def _resolve(self, path: str) -> ResolvedPath | None:
        inside = path.removeprefix(str(self.root))
        resolved = resolve_path(inside, (), root=str(self.root), root_uid=os.geteuid(), mountinfo="/dev/null")
        return None if resolved is None else replace(resolved, path=f"{self.root}{resolved.path}")

    def image(self, name: str) -> str:
        used = allowed(self.ports, "create-vm", {**SPEC, "image": str(self.images / name)}, policy=self.policy)
        return str(used["image"])

    def refused(self, name: str, text: str) -> None:
        for field in ("image", "disk", "cdrom"):
            given = {**SPEC, field: str(self.images / name)}
            error = refused(self.ports, "create-vm", given, text, policy=self.policy)
            assert "secret" not in f"{error.message} {error.facts}"


@pytest.fixture
def files(tmp_path: Path, host: SimulatedHost) -> Files:
    return Files(tmp_path / "root", host)


def test_a_link_out_of_the_folder_is_refused(files: Files) -> None:
    (files.images / "out").symlink_to("/etc/shadow")
    (files.images / "up").symlink_to("../../etc/shadow")
    (files.images / "etc").symlink_to("/etc")
    for name in ("out", "up", "etc/shadow"):
        files.refused(name, "leads to .*/etc/shadow, which is in no folder")


def test_a_link_within_the_folder_is_resolved_before_it_is_used(files: Files) -> None:
    (files.images / "latest").symlink_to("base.qcow2")
    used = files.image("latest")
    (files.images / "latest").unlink()
    (files.images / "latest").symlink_to("/etc/shadow")  # as root would have to do it; the path in use is another
    assert used == str(files.images / "base.qcow2")


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777])
@pytest.mark.parametrize("folder", [".", "..", "sub"])
def test_a_folder_that_the_group_may_write_to_is_refused_so_nothing_can_be_swapped(
    files: Files, folder: str, mode: int
) -> None:
    (files.images / "sub").mkdir()
    name = "sub/a.qcow2" if folder == "sub" else "base.qcow2"
    files.put("sub/a.qcow2", qcow2())
    files.tidy()
    assert files.image(name)
    (files.images / folder).chmod(mode)
    files.refused(name, "users other than root can write to the folder")


def test_a_file_that_the_group_may_write_to_is_refused(files: Files) -> None:
    (files.images / "base.qcow2").chmod(0o666)
    files.refused("base.qcow2", "users other than root can write to the file")


def test_no_link_in_a_folder_of_ones_own_leads_into_an_allowed_one_and_away_again(files: Files) -> None:
    """The group's folder is not listed, and a listed link's folder counts as a folder on the way."""
    shared = files.root / "srv" / "shared"
    shared.mkdir()
    (shared / "a").symlink_to("/srv/images/base.qcow2")
    shared.chmod(0o777)
    arguments = {**SPEC, "image": str(shared / "a")}
    refused(files.ports, "create-vm", arguments, "is in no folder", policy=files.policy)
    (files.images / "sub").symlink_to("/srv/shared")
    files.refused("sub/a", "can write to the folder")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (lambda root: qcow2("/etc/shadow", "raw"), "which is in no storage pool|is in no folder"),
        (lambda root: qcow2(f"{root}/etc/shadow", "raw"), "is in no folder that host.yaml allows"),
        (lambda root: qcow2("../../etc/shadow", "raw"), "is in no folder that host.yaml allows"),
        (lambda root: qcow2("nbd://host/x", "raw"), "is not a local file"),
        (lambda root: qcow2("json:{}", "raw"), "is not a local file"),
        (lambda root: qcow2("base.qcow2"), "without its format"),
        (lambda root: qcow2(features=1 << 2), "keeps its data in another file"),
        (lambda root: b"# Disk DescriptorFile\nversion=1\nRW 1 FLAT \"/etc/shadow\" 0\n", "its format is vmdk"),
    ],
)  # fmt: skip
def test_an_image_whose_header_names_a_file_of_the_host_is_refused(
    files: Files, content: Callable[[Path], bytes], text: str
) -> None:
    files.put("evil.qcow2", content(files.root))
    files.tidy()
    files.refused("evil.qcow2", text)


def test_every_file_of_a_chain_is_in_an_allowed_folder_that_is_roots_alone(files: Files) -> None:
    files.put("clone.qcow2", qcow2("base.qcow2", "qcow2"))
    other = files.root / "srv" / "other"
    other.mkdir()
    (other / "base.qcow2").write_bytes(qcow2())
    files.put("outside.qcow2", qcow2(f"{other}/base.qcow2", "qcow2"))
    (files.images / "link").symlink_to("../other")
    files.put("by-link.qcow2", qcow2("link/base.qcow2", "qcow2"))
    files.tidy()
    assert files.image("clone.qcow2")
    files.refused("outside.qcow2", "srv/other/base.qcow2 is in no folder")
    files.refused("by-link.qcow2", "leads to .*srv/other/base.qcow2, which is in no folder")
    (files.images / "base.qcow2").chmod(0o666)
    files.refused("clone.qcow2", "base.qcow2 is not safe to use: users other than root can write")


def test_what_is_no_file_is_no_image(files: Files) -> None:
    os.mkfifo(files.images / "pipe")
    (files.images / "folder").mkdir()
    files.tidy()
    for name in ("pipe", "nothing"):
        with pytest.raises(NotFound):
            files.image(name)
    files.refused("folder", "is not safe to use")


# ------------------------------------------------------------------ texts that reach a shell, XML or a log

NASTY = ["$(reboot)", "`id`", "a;b", "a'b", '"', "<a/>", "&lt;", "a\nb", "a\tb", "\x1b[2J", "a\0b", "..", "../a", "-rf",
         "a b", "\u202ex", "{}", "%s", "x" * 300]  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_names_labels_and_owners_cannot_reach_a_shell_xml_or_a_line_of_a_log(host: SimulatedHost, text: str) -> None:
    by = host_of(host, ADA)
    tries: tuple[Callable[[], object], ...] = (
        lambda: by.create_vm(text, start=False, **SPEC),
        lambda: by.create_vm("l", start=False, labels={text: "a"}, **SPEC),
        lambda: by.create_vm("m", start=False, labels={"a": text}, **SPEC),
        lambda: by.create_vm("s", start=False, spread_group=text, **SPEC),
    )
    for act in tries:
        with unchanged(host), pytest.raises(InvalidInput) as caught:
            act()
        assert all(c.isprintable() or c == "\n" for c in caught.value.message)
        assert "\n" not in text or text not in caught.value.message
    with suppress(InvalidInput):  # an owner is any visible text
        by.create_vm("o", start=False, owner=text, **SPEC)
        assert by.show_vm("o").data.owner == text
    for entry in host.sim.audit.read_entries(AuditQuery(100)).entries:
        for line in (entry.arguments, entry.message or "", *entry.vms):
            assert all(c.isprintable() for c in line), line


# ------------------------------------------------------------------ who somebody is


class Groups:
    """Users with the groups that they are in now."""

    def __init__(self, **groups: set[str]) -> None:
        self.groups = groups
        self.names = {1000 + number: name for number, name in enumerate(groups)}

    def name_of(self, uid: int) -> str | None:
        return self.names.get(uid)

    def groups_of(self, name: str) -> frozenset[str]:
        return frozenset(self.groups[name])


def test_a_user_is_what_his_groups_and_host_yaml_say() -> None:
    users = Groups(ada={"vgpuctl", "users"}, vera={"vgpuctl-view"}, both={"vgpuctl", "vgpuctl-view"}, eve={"sudo"})
    policy = AgentSpec(
        accounts={"both": "operator", "eve": "operator", "vera": "fleet"},
        limits=LimitsSpec(Limits(vms=1), Limits(vms=9), {"both": Limits(vms=5)}),
    )
    assert caller_of(1000, policy, users) == Caller(1000, "ada", Rights.MEMBER, Limits(1), Limits(9))
    assert caller_of(1001, policy, users) == Caller(1001, "vera", Rights.VIEWER)
    assert caller_of(1002, policy, users) == Caller(1002, "both", Rights.OPERATOR, Limits(5), Limits(9))
    assert caller_of(1003, policy, users) is None, "host.yaml gives no rights to who is not in the group"
    assert caller_of(4242, policy, users) is None
    assert caller_of(-1, policy, users) is None
    assert caller_of(0, policy, users) == Caller(0, "root", Rights.ROOT)


def test_a_membership_that_ends_between_two_requests_ends_the_rights(host: SimulatedHost) -> None:
    users = Groups(ada={"vgpuctl"})
    of_host = HostRights(host.ports, users)
    assert of_host.caller_of(1000).rights is Rights.MEMBER
    users.groups["ada"] = {"vgpuctl-view"}
    assert of_host.caller_of(1000).rights is Rights.VIEWER
    users.groups["ada"] = set()
    with pytest.raises(NotAllowed, match="uid 1000 is neither in the group vgpuctl nor in vgpuctl-view"):
        of_host.caller_of(1000)


def test_a_line_of_host_yaml_holds_from_the_next_request_on(host: SimulatedHost) -> None:
    of_host = HostRights(host.ports, Groups(ada={"vgpuctl"}))

    class Call:
        name = "move-vms"

    with pytest.raises(NotAllowed):
        of_host.check(of_host.caller_of(1000), Call(), {})
    host.sim.host_file.write_text("version: 1\nagent: {accounts: {ada: operator}, limits: {each_account: {vms: 3}}}\n")
    caller = of_host.caller_of(1000)
    assert (caller.rights, caller.limits) == (Rights.OPERATOR, Limits(vms=3))
    assert of_host.check(caller, Call(), {"drain": True}) == {"drain": True}
    host.sim.host_file.write_text("version: 1\nagent: {accounts: {}}\n")
    assert of_host.caller_of(1000).rights is Rights.MEMBER


def test_an_invalid_host_yaml_gives_no_more_and_reads_go_on(host: SimulatedHost) -> None:
    host.sim.host_file.write_text("version: 1\nagent: {accounts: {ada: operator}, typo: 1}\n")
    of_host = HostRights(host.ports, Groups(ada={"vgpuctl"}, root=set()))
    caller = of_host.caller_of(1000)
    assert caller.rights is Rights.MEMBER

    class Call:
        def __init__(self, name: str) -> None:
            self.name = name

    assert of_host.check(caller, Call("list-vms"), {}) == {}
    with pytest.raises(InvalidInput, match="typo"):
        of_host.check(caller, Call("start-vm"), {"name": "a"})
    with pytest.raises(NotAllowed):
        of_host.check(caller, Call("apply"), {})
    assert of_host.check(of_host.caller_of(0), Call("apply"), {"undo": 1}) == {"undo": 1}


def test_this_systems_users_are_known_by_name_and_group() -> None:
    users = rights.SystemUsers()
    assert users.name_of(0) == "root"
    assert users.name_of(2**31 - 7) is None
    assert users.name_of(-1) is None
    assert users.groups_of("nobody-of-this-name") == frozenset()
    assert users.groups_of("root") <= {"vgpuctl", "vgpuctl-view"}


def test_from_the_check_to_the_record(host: SimulatedHost) -> None:
    """What a member asks for, as the agent does it: rights, then the call with its caller."""
    host.sim.host_file.write_text(
        "version: 1\nagent: {allow: {folders: /srv/images, pools: default, networks: default}, limits: "
        "{each_account: {vms: 1}}}\n"
    )
    of_host = HostRights(host.ports, Groups(ada={"vgpuctl"}))
    caller = of_host.caller_of(1000)

    class Call:
        name = "create-vm"

    given = {"name": "vm", "image": IMAGE, **SPEC}
    host_of(host, caller).create_vm(**of_host.check(caller, Call(), given))
    assert host_of(host, None).show_vm("vm").data.account == "ada"
    with pytest.raises(NotAllowed, match="the VMs of ada may take 1 VM"):
        host_of(host, caller).create_vm(**of_host.check(caller, Call(), {**given, "name": "two"}))


def test_only_root_plans_a_change_for_later(host: SimulatedHost) -> None:
    for caller in (*MEMBERS, VIEWER):
        with pytest.raises(NotAllowed):
            check(caller, "set-vm", {"name": "a", "vcpus": 3, "when_off": True}, AgentSpec(), host.ports)
    for caller in MEMBERS:
        check(caller, "set-vm", {"name": "a", "vcpus": 3, "when_off": False}, AgentSpec(), host.ports)

# SPDX-License-Identifier: Apache-2.0
"""The VM spec: files and options end in the same values, and every message names its place.

Size: the table of fields and the tables of messages are read side by side.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config.host_spec import Defaults
from vgpuctl.config.vm_request import FIELDS, OPTION_FIELDS
from vgpuctl.config.vm_spec import VM_SHAPE, build_request, expand_names, parse_options, parse_vm_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.names import is_visible
from vgpuctl.model.numbers import format_size
from vgpuctl.model.request import ExistingDisk, NewDisk
from vgpuctl.model.vm import Nic

EVERYTHING = """\
name: vdi-1
profile: [A100-4C, "A100-4C:2", B]
gpu: [0000:3B:00.0, A40]
not_gpu: A16
numa_node: 1
spread_group: exam-1
scheduler: fixed_share
placement: breadth
mode: vgpu
memory: 16384
vcpus: 4
hugepages: 2M
cpu_pin: 31,8-15
image: /srv/base.qcow2
disk: [100, 50GiB, /srv/data.raw]
cdrom: /srv/a.iso
cloud_init: /srv/user-data
network_config: /srv/network-config
guest_sharing: "mps,memory=2048,threads=025"
license: cad
guest_driver: /srv/NVIDIA-Linux-x86_64-580.159.03-grid.run
k8s_join: lab
domain_join: corp
guest_helper: true
off_after_setup: true
networks: [desktops, {bridge: br0, vlan: 30, mac: 52-54-00-AA-00-01}]
display: true
os: generic
storage_pool: fast
hotplug_slots: 0
vgpu_params: {frame_rate_limiter: 0}
template: vm
force_console: false
force_reset: false
"""


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        parse_vm_spec(text, "vm.yaml")
    lines = caught.value.message.splitlines()
    return lines if len(lines) == 1 else lines[1:]


def option_problems(**typed: object) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        parse_options(**typed)
    return caught.value.message.splitlines()


def test_every_field_is_read() -> None:
    spec = parse_vm_spec(EVERYTHING, "vm.yaml")
    assert spec == {
        "name": "vdi-1",
        "profile": ("A100-4C", "A100-4C:2", "B"),
        "gpu": ("0000:3b:00.0", "A40"),
        "not_gpu": ("A16",),
        "numa_node": 1,
        "spread_group": "exam-1",
        "scheduler": "fixed_share",
        "placement": "breadth",
        "mode": "vgpu",
        "memory": "16GiB",
        "vcpus": 4,
        "hugepages": "2MiB",
        "cpu_pin": "8-15,31",
        "image": "/srv/base.qcow2",
        "disk": ("100GiB", "50GiB", "/srv/data.raw"),
        "cdrom": "/srv/a.iso",
        "cloud_init": "/srv/user-data",
        "network_config": "/srv/network-config",
        "guest_sharing": "mps,threads=25,memory=2GiB",
        "license": "cad",
        "guest_driver": "/srv/NVIDIA-Linux-x86_64-580.159.03-grid.run",
        "k8s_join": "lab",
        "domain_join": "corp",
        "guest_helper": True,
        "off_after_setup": True,
        "networks": ("desktops", "bridge=br0,vlan=30,mac=52:54:00:aa:00:01"),
        "display": True,
        "os": "generic",
        "storage_pool": "fast",
        "hotplug_slots": 0,
        "vgpu_params": {"frame_rate_limiter": "0"},
        "template": "vm",
        "force_console": False,
        "force_reset": False,
    }
    assert build_request(spec).profiles == (("A100-4C", 3), ("B", 1))


def test_files_and_options_agree() -> None:
    by_file = parse_vm_spec(EVERYTHING.replace(": false\n", ": true\n"), "vm.yaml")
    by_options = parse_options(
        name="vdi-1",
        profile=("A100-4C", "A100-4C:2", "B"),
        gpu=("3B:00.0", "A40"),
        not_gpu=("A16",),
        numa_node="1",
        spread_group="exam-1",
        scheduler="fixed_share",
        placement="breadth",
        mode="vgpu",
        memory="16GiB",
        vcpus=4,
        hugepages="2MiB",
        cpu_pin="8-15,31",
        image="/srv/base.qcow2",
        disk=("100", "50GiB", "/srv/data.raw"),
        cdrom="/srv/a.iso",
        cloud_init="/srv/user-data",
        network_config="/srv/network-config",
        guest_sharing="mps,threads=25,memory=2G",
        license="cad",
        guest_driver="/srv/NVIDIA-Linux-x86_64-580.159.03-grid.run",
        k8s_join="lab",
        domain_join="corp",
        guest_helper=True,
        off_after_setup=True,
        networks=("network=desktops", "bridge=br0,vlan=30,mac=52:54:00:aa:00:01"),
        display=True,
        os="generic",
        storage_pool="fast",
        hotplug_slots="0",
        vgpu_params=("frame_rate_limiter=0",),
        template="vm",
        force_console=True,
        force_reset=True,
    )
    assert by_options == by_file


def test_unset_options_are_left_out() -> None:
    nothing = parse_options(name=None, profile=("A",), disk=(), vcpus=None, force_console=None)
    assert nothing == {"profile": ("A",)}
    assert parse_vm_spec("profile: A\nimage:\ndisk: null\n", "n") == {"profile": ("A",)}


def test_every_problem_has_its_place() -> None:
    text = (
        "name: vdi 1\nprofle: A100-4C\ngpu: 2460.0\nmode: sriov\nprofile: [A100-4C:20, 'A:x', 3]\nmemory: 8GB\n"
        "vcpus: '4'\ndisk: [100GiB, ./x, foo]\nos: linus\nvgpu_params: {a: 1, B: 2}\nhotplug_slots: 17\n"
        "force_console: maybe\ntemplate: ../x\nnetworks: [a/b, {vlan: 3, bridge: br0, mac: 01:00:00:00:00:00}]\n"
    )
    result = problems(text)
    expected = [
        ("vm.yaml:1:7: name: 'vdi 1' is not a name"),
        ("vm.yaml:2:1: profle: unknown field (did you mean 'profile'?)"),
        ("vm.yaml:3:6: gpu: 2460.0 is a number, not a PCI address: quote the PCI address"),
        ("vm.yaml:5:10: profile: mode sriov takes a gpu, not a profile"),
        ("vm.yaml:5:10: profile: 20 vGPUs requested; a VM can have at most 16"),
        ("vm.yaml:5:23: profile[1]: the count after ':' in 'A:x' must be a number"),
        ("vm.yaml:5:30: profile[2]: 3 is not text: put it in quotes"),
        ("vm.yaml:6:9: memory: '8GB' has the unit GB"),
        ("vm.yaml:7:8: vcpus: '4' is text: write the number without quotes"),
        ("vm.yaml:8:16: disk[1]: './x' is not an absolute path"),
        ("vm.yaml:8:21: disk[2]: 'foo' is neither a size like 100GiB nor an absolute path"),
        ("vm.yaml:9:5: os: 'linus' is not linux, generic or windows11 (did you mean 'linux'?)"),
        ("vm.yaml:10:14: vgpu_params: 'B=2' is not a vGPU parameter"),
        ("vm.yaml:11:16: hotplug_slots: 17 is not between 0 and 16"),
        ("vm.yaml:12:16: force_console: 'maybe' is not true or false"),
        ("vm.yaml:13:11: template: '../x' is not a template name"),
        ("vm.yaml:14:12: networks[0]: 'a/b' is not a name: it contains a '/'"),
        ("vm.yaml:14:17: networks[1]: 01:00:00:00:00:00 is a multicast address"),
    ]
    assert len(result) == len(expected)
    for line, start in zip(result, expected, strict=True):
        assert line.startswith(start)


def test_facts_carry_the_same_problems() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_vm_spec("profile: A\nvcpus: 0\n", "vm.yaml")
    assert caught.value.message == "vm.yaml:2:8: vcpus: 0 is not between 1 and 4096"
    assert caught.value.facts["problems"] == [
        {"file": "vm.yaml", "line": 2, "column": 8, "path": "vcpus", "problem": "0 is not between 1 and 4096"}
    ]


@pytest.mark.parametrize("text", ["", "- a", "just words", "3"])
def test_a_spec_is_a_mapping(text: str) -> None:
    assert problems(text) == ["vm.yaml:1:1: expected a mapping (key: value)"]


def test_a_field_typed_as_an_option_is_suggested() -> None:
    assert problems("storage-pool: x") == ["vm.yaml:1:1: storage-pool: unknown field (did you mean 'storage_pool'?)"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("mode: passthrough\ngpu: x\nprofile: A", "vm.yaml:3:10: profile: mode passthrough takes a gpu, not a profile"),
        ("profile: [A:9, B:8]", "vm.yaml:1:10: profile: 17 vGPUs requested; a VM can have at most 16"),
        ("image: /a\ndisk: /b", "vm.yaml:2:7: disk: the first disk becomes the clone of image"),
        ("disk: [/a, 3, /a]", "vm.yaml:1:7: disk: the disk '/a' is given twice"),
    ],
)
def test_contradictions(text: str, line: str) -> None:
    (result,) = problems(text)
    assert result.startswith(line)


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ({"name": "-x"}, "NAME: '-x' is not a name"),
        (
            {"profile": ("A:0",)},
            "--profile: the count after ':' in 'A:0' must be a number from 1 to 9999, like A100-4C:2",
        ),
        ({"gpu": "0"}, "--gpu: '0' is not a GPU: GPUs are named by PCI address or model; vgpuctl list-gpus shows them"),
        ({"not_gpu": ("",)}, "--not-gpu: '' is not a GPU"),
        ({"not_gpu": ("A40",), "gpu": ("A40",)}, "--not-gpu: 'A40' is also given as gpu"),
        ({"gpus": "0", "mode": "passthrough"}, "--gpus: 0 is not between 1 and 16"),
        ({"gpus": "2"}, "--gpus: gpus counts whole GPUs or plain VFs: specify mode passthrough or sriov"),
        (
            {"gpus": "3", "mode": "passthrough", "gpu": ("0000:3b:00.0", "3c:00.0")},
            "--gpus: 3 are requested, but gpu names only 2",
        ),
        (
            {"mode": "passthrough", "gpu": ("L40S", "3c:00.0")},
            "--gpu: 2 are given, and not all are addresses: gpus (--g",
        ),
        ({"mode": "passthrough", "gpu": ("3b:00.0", "0000:3b:00.0")}, "--gpu: the GPU '0000:3b:00.0' is given twice"),
        ({"numa_node": "x"}, "--numa-node: 'x' is not a whole number"),
        ({"numa_node": "1024"}, "--numa-node: 1024 is not between 0 and 1023"),
        ({"spread_group": "a b"}, "--spread-group: 'a b' is not a name"),
        ({"scheduler": "fair"}, "--scheduler: 'fair' is not best_effort, equal_share or fixed_share"),
        (
            {"scheduler": "fixed_share", "mode": "sriov"},
            "--scheduler: mode sriov has no vGPUs, and a scheduler applies only to",
        ),
        ({"placement": "deep"}, "--placement: 'deep' is not least-waste, depth, breadth, first-fit, binpack or spread"),
        ({"placement": "depth", "mode": "passthrough"}, "--placement: mode passthrough has no vGPUs, and a placement"),
        ({"mode": "vgp"}, "--mode: 'vgp' is not vgpu, sriov, passthrough or virtio-gpu (did you mean 'vgpu'?)"),
        ({"memory": "8GB"}, "--memory: '8GB' has the unit GB"),
        ({"vcpus": "x"}, "--vcpus: 'x' is not a whole number"),
        ({"image": "a"}, "--image: 'a' is not an absolute path"),
        ({"disk": ("x",)}, "--disk: 'x' is neither a size"),
        ({"cdrom": "a"}, "--cdrom: 'a' is not an absolute path"),
        ({"cloud_init": "a"}, "--cloud-init: expected the absolute path of a file, not its content"),
        ({"hugepages": "4M"}, "--hugepages: '4M' is not a size of huge pages: write 2MiB, 1GiB or none"),
        ({"cpu_pin": "8-"}, "--cpu-pin: '8-' is not a list of CPUs like 8-15,24-31"),
        ({"license": "../cad"}, "--license: '../cad' is not the name of a license: letters, digits"),
        (
            {"guest_sharing": "mig"},
            "--guest-sharing: 'mig' is not none, mps, mps,threads=PERCENT,memory=SIZE, mps:PODS",
        ),
        ({"guest_sharing": "mps,threads=0"}, "--guest-sharing: threads='0': a percentage is 1 to 100"),
        ({"guest_sharing": "mps,threads=101"}, "--guest-sharing: threads='101': a percentage is 1 to 100"),
        ({"guest_sharing": "mps,memory=8GB"}, "--guest-sharing: '8GB' has the unit GB"),
        ({"guest_sharing": "mps,memory=10"}, "--guest-sharing: memory=10: that is 10 MiB, and a program needs 64 MiB"),
        ({"guest_sharing": "mps,memory=0"}, "--guest-sharing: '0' is zero"),
        ({"guest_sharing": "mps,clients=4"}, "--guest-sharing: 'clients=4' is no limit of mps"),
        ({"guest_sharing": "mps,threads=1,threads=2"}, "--guest-sharing: threads is given twice"),
        ({"guest_sharing": "mps:1"}, "--guest-sharing: mps:1: from 2 to 48 pods can share a GPU by mps"),
        ({"guest_sharing": "mps:49"}, "--guest-sharing: mps:49: from 2 to 48 pods can share a GPU by mps"),
        ({"guest_sharing": "time-slicing:101"}, "--guest-sharing: time-slicing:101: from 2 to 100 pods"),
        ({"guest_sharing": "time-slicing"}, "--guest-sharing: time-slicing needs the number of pods"),
        ({"guest_sharing": "$(reboot)"}, "--guest-sharing: '$(reboot)' is not none, mps"),
        ({"network_config": "a"}, "--network-config: expected the absolute path of a file, not its content"),
        ({"networks": ("a/b",)}, "--network: 'a/b' is not a name"),
        ({"networks": ("lan,mac=52",)}, "--network: 'lan' in 'lan,mac=52' is not KEY=VALUE"),
        ({"networks": ("vlan=3",)}, "--network: specify one of network (a libvirt network) and bridge"),
        ({"networks": ("network=lan,bridge=br0",)}, "--network: specify one of network"),
        ({"networks": ("network=lan,vlan=3",)}, "--network: vlan requires bridge"),
        ({"networks": ("bridge=br0,vlan=4095",)}, "--network: 4095 is not between 1 and 4094"),
        ({"networks": ("bridge=br0,vlan=x",)}, "--network: 'x' is not a whole number"),
        ({"networks": ("bridge=br0,mtu=9000",)}, "--network: 'mtu' is not one of network, bridge, vlan, model, mac"),
        ({"networks": ("network=lan,model=ne2k",)}, "--network: 'ne2k' is not virtio or e1000e"),
        ({"networks": ("network=lan,mac=52:54:00",)}, "--network: '52:54:00' is not a MAC address"),
        ({"networks": ("network=lan,mac=53:54:00:00:00:01",)}, "--network: 53:54:00:00:00:01 is a multicast address"),
        ({"networks": ("none", "lan")}, "--network: none means no network card"),
        (
            {"networks": ("network=a,mac=52:54:00:00:00:01", "bridge=b,mac=52-54-00-00-00-01")},
            "--network: the MAC address 52:54:00:00:00:01 is given twice",
        ),
        ({"guest_driver": "/srv/driver.run"}, "--guest-driver: 'driver.run' is no name of NVIDIA's drivers"),
        ({"k8s_join": "a b"}, "--k8s-join: 'a b' is not the name of a cluster"),
        ({"domain_join": "../a"}, "--domain-join: '../a' is not the name of a domain's entry"),
        ({"off_after_setup": "x"}, "--off-after-setup: 'x' is not true or false"),
        ({"guest_helper": "x"}, "--guest-helper: 'x' is not true or false"),
        ({"display": "x"}, "--display: 'x' is not true or false"),
        ({"display": True, "mode": "passthrough"}, "--display: mode passthrough has no vGPU"),
        ({"os": "windows"}, "--os: 'windows' is not linux, generic or windows11"),
        ({"storage_pool": ""}, "--storage-pool: '' is not a name"),
        ({"hotplug_slots": -1}, "--hotplug-slots: -1 is not between 0 and 16"),
        ({"pci_window": "wide"}, "--pci-window: 'wide' is not a size"),
        ({"vgpu_params": ("a=1", "a=2")}, "--vgpu-param: the vGPU parameter 'a' is given twice"),
        ({"labels": ("a",)}, "--label: 'a' is not a label"),
        ({"autostart": "yes"}, "--autostart: 'yes' is not disabled, enabled or last-state"),
        ({"autostart_storage": "nfs"}, "--autostart-storage: 'nfs' is not local or any"),
        ({"start_order": "-1"}, "--start-order: "),
        ({"owner": " "}, "--owner: ' ' is not an owner"),
        ({"reserve": "never"}, "--reserve: 'never' is not always or running"),
        ({"template": "/x"}, "--template: '/x' is not a template name"),
        ({"force_console": "x"}, "--force-console: 'x' is not true or false"),
        ({"force_reset": "x"}, "--force-reset: 'x' is not true or false"),
    ],
)
def test_options_are_named_in_messages(typed: dict[str, object], line: str) -> None:
    (result,) = option_problems(**typed)
    assert result.startswith(line)


def test_every_field_has_its_option_in_that_test() -> None:
    parameters = test_options_are_named_in_messages.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {key for typed, _ in parameters for key in typed} == set(FIELDS)


@pytest.mark.parametrize(
    ("typed", "count", "source"),
    [
        ({"gpu": ("H100",), "mode": "passthrough"}, 1, "default"),
        ({"gpus": "2", "mode": "passthrough"}, 2, "given"),
        ({"gpu": ("3b:00.0", "3c:00.0"), "mode": "passthrough"}, 2, "given"),
        ({"gpu": ("3b:00.0", "3c:00.0", "3d:00.0"), "gpus": "2", "mode": "passthrough"}, 2, "given"),
        ({"gpu": ("H100", "L40S"), "gpus": "2", "mode": "passthrough"}, 2, "given"),
        ({"gpu": ("3b:00.0", "3c:00.0"), "mode": "sriov"}, 1, "default"),
        ({"gpu": ("3b:00.0", "3c:00.0"), "profile": ("A100-4C",)}, 1, "default"),
    ],
)
def test_every_whole_gpu_that_is_named_by_address_is_requested(typed, count, source) -> None:
    request = build_request(parse_options(name="vm", **typed))
    assert (request.gpus, request.sources["gpus"]) == (count, source)


def test_all_wrong_options_are_reported_at_once() -> None:
    result = option_problems(mode="sriov", profile=("A:17",), memory="8GB", image="/a", disk=("/b",))
    assert [line.split(":")[0] for line in result] == ["--memory", "--profile", "--profile", "--disk"]


def test_defaults_fill_a_request_with_sources() -> None:
    defaults = Defaults(memory="8GiB", vcpus=8, image="/srv/base.qcow2", storage_pool="fast", os="generic")
    made = build_request(parse_options(profile=("A:2", "B", "A"), memory="2GiB", disk=("100",)), defaults)
    assert made.profiles == (("A", 3), ("B", 1))
    assert (made.memory_mib, made.vcpus, made.image) == (2048, 8, "/srv/base.qcow2")
    assert made.disks == (NewDisk(100 * 1024),)
    assert (made.nics, made.os, made.storage_pool) == ((Nic(network="default"),), "generic", "fast")
    assert (made.hotplug_slots, made.hugepages, made.cpu_pin, made.display) == (4, "none", "none", False)
    assert (made.mode, made.template, made.force_console, made.name) == ("vgpu", "vm", False, None)
    assert set(made.sources) == set(FIELDS)
    assert made.is_explicit("memory")
    assert made.sources["vcpus"] == "host.yaml"
    assert made.sources["networks"] == "default"


def test_built_in_values_fill_without_a_host_file() -> None:
    made = build_request(parse_options(profile=("A100-4C",)))
    assert (made.memory_mib, made.vcpus, made.image, made.disks, made.os) == (4096, 2, None, (), "linux")


def test_every_built_in_value_passes_the_rules() -> None:
    given = {entry.name: entry.default for entry in OPTION_FIELDS if entry.default is not None}
    assert VM_SHAPE.check({"profile": "A", **given}) == {"profile": ("A",), **given}


@pytest.mark.parametrize("given", [{"cdrom": "/a.iso"}, {"disk": ("/a.qcow2",)}])
def test_a_default_image_yields_to_a_system_that_was_typed(given: dict[str, object]) -> None:
    made = build_request(parse_options(profile=("A",), **given), Defaults(image="/srv/base.qcow2"))
    assert made.image is None
    assert made.sources["image"] == "default"


def test_a_vm_needs_a_profile_or_a_gpu() -> None:
    with pytest.raises(InvalidInput, match="no profile given") as caught:
        build_request(parse_options(name="a"))
    assert "list-profiles" in (caught.value.hint or "")
    for mode in ("sriov", "passthrough"):
        with pytest.raises(InvalidInput, match=f"--mode: mode {mode} needs a gpu"):
            build_request(parse_options(mode=mode))
    assert build_request(parse_options(mode="sriov", gpu="3b:00.0")).gpu == ("0000:3b:00.0",)
    assert build_request(parse_options(name="a"), require_complete=False).name == "a"


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
clean = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf", "Zl", "Zp")).filter(is_visible), max_size=20)
paths = clean.map(lambda rest: f"/{rest}x")
sizes = st.integers(64, 2**30).map(format_size)
typed_specs = st.fixed_dictionaries(
    {"profile": st.lists(names, min_size=1, max_size=4).map(tuple)},
    optional={
        "name": names,
        "gpu": st.sampled_from(["3b:00.0", "A100", "mtty"]),
        "memory": sizes,
        "vcpus": st.integers(1, 4096),
        "cdrom": paths,
        "cloud_init": paths,
        "disk": st.lists(sizes | paths, max_size=4, unique=True).map(tuple),
        "network_config": paths,
        "networks": st.sampled_from(["none", ("lan", "bridge=br0,vlan=4"), ("network=a.b,model=e1000e",)]),
        "hugepages": st.sampled_from(["none", "2M", "1GiB"]),
        "cpu_pin": st.sampled_from(["auto", "none", "0", "9,1-3,4"]),
        "guest_sharing": st.sampled_from(["none", "mps", "mps:48", "time-slicing:2", "mps,memory=1G,threads=100"]),
        "guest_driver": st.sampled_from(["none", "/a/nvidia-linux-grid-580_580.159.03_amd64.deb"]),
        "k8s_join": st.sampled_from(["none", "lab"]),
        "domain_join": st.sampled_from(["none", "corp"]),
        "guest_helper": st.booleans(),
        "off_after_setup": st.booleans(),
        "display": st.booleans(),
        "os": st.sampled_from(["linux", "generic", "windows11"]),
        "storage_pool": names,
        "hotplug_slots": st.integers(0, 16),
        "pci_window": st.sampled_from(["auto", "none", "1TiB"]),
        "vgpu_params": st.sampled_from([("a=1",), ("b=2", "a=x=y")]),
        "template": st.sampled_from(["vm", "my-vm_2"]),
        "force_console": st.booleans(),
        "force_reset": st.booleans(),
    },
)


@given(typed_specs)
def test_a_file_and_the_same_options_give_the_same_spec(typed: dict[str, object]) -> None:
    spec = parse_options(**typed)
    assert parse_vm_spec(json.dumps(spec), "spec") == spec
    made = build_request(spec)
    assert sum(count for _, count in made.profiles) == len(typed["profile"])  # type: ignore[arg-type]
    assert all(isinstance(disk, NewDisk | ExistingDisk) for disk in made.disks)


@given(
    st.dictionaries(
        st.sampled_from([*FIELDS]),
        st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=3),
    )
)
def test_any_value_is_taken_or_refused_in_words(value: dict[str, object]) -> None:
    try:
        spec = parse_options(**value)
    except InvalidInput:
        return
    assert parse_vm_spec(json.dumps(spec), "spec") == spec


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("vdi-{:03}", ("vdi-001", "vdi-002", "vdi-003")),
        ("vdi-{}", ("vdi-1", "vdi-2", "vdi-3")),
        ("{:02}.lab", ("01.lab", "02.lab", "03.lab")),
    ],
)
def test_the_placeholder_is_the_number_from_one(pattern, names):
    assert expand_names(pattern, 3) == names


def test_a_number_that_needs_more_digits_gets_them():
    assert expand_names("v{:02}", 100)[-1] == "v100"


@pytest.mark.parametrize(
    "pattern",
    ["vdi", "", "vdi-{}-{}", "vdi-{0}", "vdi-{n}", "vdi-{:3}", "vdi-{:0}", "vdi-{:x}", "vdi-{:03d}", "vdi-{", "{{}}"],
)
def test_anything_else_is_refused_with_an_example(pattern):
    with pytest.raises(InvalidInput) as raised:
        expand_names(pattern, 3)
    assert "vdi-{:03}" in f"{raised.value.message} {raised.value.hint}"


def test_a_name_that_is_missing_is_refused_with_an_example():
    with pytest.raises(InvalidInput, match=r"vdi-\{:03\}"):
        expand_names(None, 3)


@pytest.mark.parametrize("pattern", ["-{}", "a/{}", "vm {}", "x" * 63 + "{}"])
def test_the_names_must_be_names(pattern):
    with pytest.raises(InvalidInput, match="is not a name"):
        expand_names(pattern, 3)


def test_the_last_name_is_checked_too():
    assert expand_names("x" * 62 + "{}", 9)
    with pytest.raises(InvalidInput, match="is not a name"):
        expand_names("x" * 62 + "{}", 10)


def test_specs_of_several_vms_in_one_text_get_a_hint() -> None:
    with pytest.raises(InvalidInput, match="a second document begins here") as raised:
        parse_vm_spec("name: a\n---\nname: b\n", "standard input")
    assert "--job NAME" in str(raised.value.hint)

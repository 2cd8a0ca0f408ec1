# SPDX-License-Identifier: Apache-2.0
"""Every way into the program. A surface makes a case from a seed; the case runs in its own prepared directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests import foreign_vms as vm_texts
from tests.fuzz import odd, played, words
from tests.fuzz.oracle import Case, Ended, call, command

Make = Callable[[Random, Path], Ended]
HOST = ("--host", "sim:a100-40")
UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"

VM: dict[str, Any] = {
    "name": "vdi-3",
    "profile": ["A100-4C", "A100-4C"],
    "gpu": "0000:3b:00.0",
    "memory": "4GiB",
    "vcpus": 2,
    "disk": ["20GiB"],
    "networks": ["default", {"bridge": "br0"}],
    "hugepages": "2MiB",
    "cpu_pin": "0-3",
    "os": "linux",
    "reserve": "always",
    "numa_node": 0,
    "spread_group": "web",
    "placement": "depth",
    "hotplug_slots": 2,
    "vgpu_params": {"frame_rate_limiter": "0"},
}
HOST_FILE: dict[str, Any] = {
    "version": 1,
    "defaults": {"memory": "8GiB", "vcpus": 4, "networks": "default", "storage_pool": "default"},
    "boot": {"deadline_seconds": 60},
    "placement": {"policy": "least-waste"},
    "gpus": {
        "0000:3b:00.0": {"mode": "vgpu", "reserved_for": ["vdi-*"], "profiles": ["A100-4C", "A100-8C"]},
        "A100": {"cordoned": False},
        "all": {"mode": "vgpu"},
    },
    "vgpus": {"spare-1": {"profile": "A100-4C", "gpu": "0000:3b:00.0", "carrier": "0000:3b:01.2"}},
}
SCENARIO: dict[str, Any] = {
    "version": 1,
    "title": "a host",
    "kernel": "6.8.0-45-generic",
    "iommu": True,
    "libvirt": {"version": "10.0.0", "qemu": "8.2.2", "running": True},
    "nvidia": {"driver": "550.90.05", "nvml": "present"},
    "networks": [{"name": "default", "active": True}],
    "storage": {"filesystem_gib": 1000, "used_gib": 100, "pools": [{"name": "fast", "capacity_gib": 10}]},
    "images": [{"path": "/var/lib/libvirt/images/base.qcow2", "size_gib": 20, "firmware": "both"}],
    "gpus": [
        {"model": "A100", "count": 2, "numa_node": 0, "vgpus": [{"profile": "A100-4C", "vm": "x"}]},
        {"model": "A16", "address": "0000:81:00.0", "profiles": ["A16-1B"], "iommu_group": 44},
        {"model": "mine", "backend": "mdev-pf", "profiles": [{"name": "a", "key": "a-1", "max": 4}]},
        {"model": "H100", "mig": ["1g.10gb"], "vfs": {"total": 16}},
    ],
    "faults": [{"on": "sysfs-read", "match": "*vendor*", "kind": "error", "errno": "EIO", "times": 1}],
}
FOREIGN: tuple[Any, ...] = (
    [
        {
            "0000:3b:00.4": [
                {UUID: {"mdev_type": "nvidia-468", "start": "auto", "attrs": [{"nvidia/vgpu_params": "a=1"}]}}
            ]
        }
    ],
    {
        "version": "v1",
        "vgpu-configs": {"default": ["A100-4C"], "b": [{"devices": [0], "vgpu-devices": {"A100-4C": 4}}]},
    },
    {"version": "v1", "mig-configs": {"a": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]}},
)
_CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "registry.example.org/i:1",
    "command": ["python", "-m", "serve"],
    "args": ["--port", "8000"],
    "env": [{"name": "A", "value": "b"}, {"name": "ORION_GMEM", "value": "4096"}],
}
_TERMS = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-PCIE-40GB"]}]}
    ]
}
MANIFESTS: tuple[Any, ...] = tuple(
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "train",
            "namespace": "ml",
            "labels": {"aliyun.com/gpu-count": "2"},
            "annotations": {"nvidia.com/use-gputype": "A100,T4", "nvidia.com/vgpu-mode": "hami-core"},
        },
        "spec": {
            "replicas": 3,
            "template": {
                "spec": {
                    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-PCIE-40GB"},
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _TERMS}},
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
                    "initContainers": [{**_CONTAINER, "restartPolicy": "Always"}],
                    "containers": [
                        {
                            **_CONTAINER,
                            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                            "resources": {"limits": {"cpu": "2", "memory": "4Gi", **limits}},
                        }
                    ],
                }
            },
        },
    }
    for limits in (
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 25},
        {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 16},
        {"aliyun.com/gpu-mem": 3},
        {"virtaitech.com/gpu": 1},
        {"nvidia.com/mig-1g.5gb": 1},
    )
)
_ASKING = {**_CONTAINER, "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": [{"name": "gpu"}]}}
_OBJECTS: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "spec": {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]}}},
    },
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "containers": [_ASKING],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "train"}],
        },
    },
    {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "spec": {"predictor": {"minReplicas": 1, "model": {**_ASKING, "runtime": "train", "storageUri": "pvc://a"}}},
    },
    {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "ServingRuntime", "spec": {"containers": [_ASKING]}},
    {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 3, "workerTemplate": {"spec": {"containers": [_ASKING]}}},
        },
    },
    {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "spec": {
            "workerGroupSpecs": [
                {"groupName": "a", "numOfHosts": 2, "template": {"spec": {"containers": [_ASKING]}}},
            ],
        },
    },
)
MANIFESTS += (
    {"apiVersion": "v1", "kind": "List", "items": [{**one, "metadata": {"name": "train"}} for one in _OBJECTS]},
)
QUERIES = (
    "list-gpus",
    "list-vms",
    "list-vgpus",
    "list-profiles",
    "explain A100-4C",
    "export",
    "diff",
    "doctor",
    "list-images",
)


def prepared(directory: Path) -> Path:
    """Create the host that every case gets a copy of: it has two VMs, one of which runs."""
    os.environ["XDG_STATE_HOME"] = str(directory / "state")
    for line in ("create-vm vdi-1 --profile A100-4C", "create-vm vdi-2 --profile A100-4C --no-start"):
        result = command(*HOST, *line.split())
        assert result.status == 0, result
    played.prepared(directory / "host")
    return directory


def case_of(surface: str, seed: int, number: int) -> Case:
    """Return one case. The same arguments give the same case."""

    def run(place: Path) -> Ended:
        return SURFACES[surface](Random(f"{surface} {seed} {number}"), place)

    return run


def _yaml(rng: Random, place: Path, document: Any) -> str:
    path = place / "given.yaml"
    path.write_bytes(odd.yaml_text(rng, document))
    return str(path)


def _form(rng: Random) -> tuple[str, ...]:
    return rng.choice(((), ("--json",), ("--json",)))


def spec(rng: Random, place: Path) -> Ended:
    """A VM's spec file."""
    file = _yaml(rng, place, VM)
    more = rng.choice(((), ("--dry-run",), ("--count", "2")))
    return command(*HOST, *_form(rng), "--yes", "ensure-vm", "-f", file, *more)


def host_file(rng: Random, place: Path) -> Ended:
    """host.yaml, as an option or as the host's own file."""
    file = _yaml(rng, place, HOST_FILE)
    if rng.random() < 0.5:
        line = rng.choice(
            (
                ("diff", "-f", file),
                ("apply", "-f", file),
                ("apply", "-f", file, "--dry-run"),
                ("diff", "--quiet", "-f", file),
            )
        )
        return command(*HOST, *_form(rng), "--yes", *line)
    own = next((place / "state").glob("**/journal*")).parent / "etc/vgpuctl/host.yaml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(Path(file).read_bytes())
    changing = (
        "create-vm --profile A100-4C",
        "start-vm vdi-2",
        "cordon 0000:3b:00.0",
        "restore-host",
        "reconcile-host",
        "apply",
    )
    line = rng.choice((*QUERIES, *changing))
    return command(*HOST, *_form(rng), "--yes", *line.split())


def imports(rng: Random, place: Path) -> Ended:
    """Files of other programs."""
    file = _yaml(rng, place, rng.choice(FOREIGN))
    return command(*HOST, *_form(rng), "import", file, *rng.choice(((), ("--config", "b"))))


def jobs(rng: Random, place: Path) -> Ended:
    """Manifests of Kubernetes."""
    file = _yaml(rng, place, rng.choice(MANIFESTS))
    assume = rng.choice((("--assume", "aliyun.com/gpu-mem=GiB"), ("--assume", "x")))
    options = rng.choice(((), ("--units",), ("--job", "train"), assume))
    return command(*HOST, *_form(rng), "import-job", file, *options)


def foreign_vms(rng: Random, place: Path) -> Ended:
    """Files of VMs of other hypervisors: each format with lines and values changed, OVAs with bytes changed."""
    names = rng.sample(sorted(vm_texts.FORMATS), rng.choice((1, 1, 2)))
    files = []
    for name in names:
        file = place / f"given-{name}"
        if name == "ovf" and rng.random() < 0.5:
            vm_texts.write_ova(
                file, ("a.ovf", odd.lines(rng, vm_texts.OVF)), ("desk-2-disk1.vmdk", vm_texts.sparse_vmdk("x"))
            )
            file.write_bytes(odd.damaged_bytes(rng, file.read_bytes()))
        else:
            file.write_bytes(odd.lines(rng, vm_texts.FORMATS[name]))
        files.append(str(file))
    (place / "desk-1.vmdk").write_bytes(odd.lines(rng, vm_texts.DESCRIPTOR.format(extent=odd.text(rng, "x.vmdk"))))
    return command(*HOST, *_form(rng), "import-vm", *files)


def scenario(rng: Random, place: Path) -> Ended:
    """A simulated host's file."""
    file = _yaml(rng, place, SCENARIO)
    line = rng.choice((*QUERIES, "create-vm --profile A100-4C", "reconcile-host", "sim list-scenarios"))
    return command("--host", f"sim:{file}", *_form(rng), "--yes", *line.split())


def template(rng: Random, place: Path) -> Ended:
    """An admin's domain template."""
    from vgpuctl.domain.render import read_builtin_template

    given = read_builtin_template("vm") or ""
    lines = given.splitlines()
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        lines[at] = rng.choice(
            (
                "",
                odd.text(rng, lines[at]),
                lines[at] * 2,
                "{% for a in [1] %}" * rng.choice((1, 25)),
                "{{ vm.nothing }}",
            )
        )
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    own = next((place / "state").glob("**/journal*")).parent / "etc/vgpuctl/templates/vm.xml.j2"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("\n".join(lines), "utf-8", "replace")
    return command(
        *HOST, *_form(rng), "create-vm", "--profile", "A100-4C", *rng.choice(((), ("--dry-run",), ("--print-xml",)))
    )


def line(rng: Random, place: Path) -> Ended:
    """Words on the command line: every command and option in click's own tree."""
    return command(*HOST, *_form(rng), *words.made(rng, place))


def change(rng: Random, place: Path) -> Ended:
    """Several fields of VMs at once."""
    return command(*HOST, *_form(rng), *words.change(rng))


def libvirt(rng: Random, place: Path) -> Ended:
    """Domain XML from libvirt, read through a hypervisor that changes it."""
    return call(lambda: played.damaged(rng, place))


def ssh(rng: Random, place: Path) -> Ended:
    """The reply of another host: the output bytes of a remote command, parsed as a reply."""
    return call(lambda: played.answered(rng))


# ---------------------------------------------------------------------- captured trees


def tree(rng: Random, place: Path) -> Ended:
    """A captured /sys, /proc and /run in which something else replaces some files."""
    root = place / "captured"
    for number, address in enumerate(("0000:3b:00.0", "0000:5e:00.0")):
        _device(rng, root, address, number)
    (root / "etc").mkdir()
    (root / "etc/machine-id").write_text("0" * 31 + "1\n")
    for name in ("run/vgpuctl/claims", "proc/driver/nvidia", "proc/42"):
        (root / name).mkdir(parents=True)
    (root / "proc/42/stat").write_text(f"42 (q) S {'0 ' * 18}777 0\n")
    claim = '{"carrier": "x", "gpu": "0000:3b:00.0", "vm_uuid": "y", "process": {"pid": 42, "start_ticks": 777}}'
    (root / "run/vgpuctl/claims/x").write_text(claim)
    entries = sorted(path for path in root.rglob("*") if path != root)
    for _ in range(rng.randint(1, 5)):
        _spoil(rng, rng.choice(entries))
    commands = (
        *QUERIES,
        "show-gpu 0000:3b:00.0",
        "fits --profile A16-1B",
        "plan-moves --profile A16-1B",
        "move-vms --profile A16-1B --dry-run",
        "reconcile-host --dry-run",
    )
    return command("--root", str(root), *_form(rng), *rng.choice(commands).split())


def _device(rng: Random, root: Path, address: str, number: int) -> None:
    top = root / "sys/devices/pci0000:00" / address
    kind = top / "mdev_supported_types/nvidia-588"
    vf = root / f"sys/devices/pci0000:00/{address[:-1]}4"
    for made in (kind, vf / "nvidia", root / "sys/bus/pci/devices", root / "sys/class/mdev_bus"):
        made.mkdir(parents=True, exist_ok=True)
    files = {
        top: {"class": "0x030200", "vendor": "0x10de", "device": "0x20b0", "numa_node": "0", "boot_vga": "0",
              "sriov_totalvfs": "4", "sriov_numvfs": "1", "resource": "0x0 0x0 0x0\n" * 13},
        kind: {"name": "A16-1B", "description": "framebuffer=1024M, max_instance=16", "available_instances": "16"},
        vf: {"class": "0x030200", "vendor": "0x10de", "device": "0x20b0"},
        vf / "nvidia": {"current_vgpu_type": "0", "creatable_vgpu_types": "ID : vGPU Name\n588 : NVIDIA A16-1B\n"},
    }  # fmt: skip
    for directory, texts in files.items():
        for name, text in texts.items():
            (directory / name).write_text(f"{text}\n")
    group = root / f"sys/kernel/iommu_groups/{number}/devices"
    group.mkdir(parents=True)
    (group / address).symlink_to(f"../../../../devices/pci0000:00/{address}")
    for device in (top, vf):
        (device / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
        (device / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{number}")
        (root / "sys/bus/pci/devices" / device.name).symlink_to(f"../../../devices/pci0000:00/{device.name}")
    (top / "virtfn0").symlink_to(f"../{vf.name}")
    (vf / "physfn").symlink_to(f"../{address}")
    if rng.random() < 0.5:
        (top / UUID).mkdir()
        (top / UUID / "mdev_type").symlink_to("../mdev_supported_types/nvidia-588")
        (root / "sys/class/mdev_bus" / address).symlink_to(f"../../devices/pci0000:00/{address}")


def _spoil(rng: Random, path: Path) -> None:
    """Replace a file, link or directory with something else."""
    if not os.path.lexists(path):
        return
    original = path.with_name(f"gone-{rng.randrange(1 << 30)}")
    path.rename(original)
    links = (path.name, "/dev/zero", "/", "../../../../../../../..", "nowhere", "..", original.name)
    names = ("virtfn²", "0000:ff:00.0", "nvidia-²", "\udcff", UUID, "x" * 200)
    ways: tuple[Callable[[], object], ...] = (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to(rng.choice(links)),
        lambda: path.symlink_to(rng.choice(links)),
        path.mkdir,
        lambda: _huge(path),
        lambda: path.write_bytes(odd.text(rng).encode("utf-8", "surrogatepass")),
        lambda: path.write_bytes(rng.randbytes(300)),
        lambda: _socket(path),
        lambda: path.write_text(f"{rng.choice(odd.TEXTS[:14])!a}\n"),
        lambda: original.rename(path.with_name(rng.choice(names))),
    )
    rng.choice(ways)()


def _huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(3 << 30)


def _socket(path: Path) -> None:
    """Bind a socket at this path. The whole path is longer than a socket address may be."""
    previous = os.getcwd()
    with socket.socket(socket.AF_UNIX) as unix_socket:
        os.chdir(path.parent)
        unix_socket.bind(path.name)
    os.chdir(previous)


SURFACES: dict[str, Make] = {
    "change": change,
    "foreign-vms": foreign_vms,
    "host-file": host_file,
    "imports": imports,
    "jobs": jobs,
    "libvirt": libvirt,
    "scenario": scenario,
    "spec": spec,
    "ssh": ssh,
    "template": template,
    "tree": tree,
    "words": line,
}

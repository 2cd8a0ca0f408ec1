"""Compares create-vm with a bare script and virt-install in the lab. Prints ratios; no time fails a test.

Everything in the lab is emulated, so only the ratios are meaningful, not the seconds. The tests assert that all three
create the same: a running VM with a linked clone, and an mdev on the host that belongs to the VM.
"""

from __future__ import annotations

import json
import re
import statistics
import uuid

import pytest

from tests.bench.in_lab import BASE, MANY, WAYS
from tests.bench.paired import runs, tell
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB, must, put_gpu, use_defaults

PROFILE = "A100-4C"
SCRIPT = "/opt/vgpuctl/src/tests/bench/in_lab.py"
SIX, MANY_BARE = 6, 1.1
OUTSIDE_BARE, OUTSIDE_VIRT_INSTALL, WHOLE_BARE = 3.0, 1.0, 1.3
VOLUME = """<volume><name>{name}.qcow2</name><capacity>{size}</capacity><allocation>0</allocation>
<target><format type='qcow2'/></target>
<backingStore><path>{base}</path><format type='qcow2'/></backingStore></volume>"""


@pytest.mark.slow
@pytest.mark.deadline(1800)
def test_create_vm_next_to_a_script_and_virt_install(lab: Lab, pytestconfig: pytest.Config) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    create = create_file(lab)
    xml = lab.run(["vgpuctl", "create-vm", "NAME", "--profile", PROFILE, "--print-xml"]).stdout
    times: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(runs(2, 7) + 1):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            took = one(lab, way, f"{way}-{number}", xml, create)
            if number:  # the first round warms up
                times[way].append(took)
    say(pytestconfig, times)


@pytest.mark.slow
@pytest.mark.deadline(1800)
def test_six_at_once_next_to_a_script_that_starts_four(lab: Lab, pytestconfig: pytest.Config) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    create = create_file(lab)
    xml = lab.run(["vgpuctl", "create-vm", "NAME", "--profile", PROFILE, "--print-xml"]).stdout
    times: dict[str, list[float]] = {way: [] for way in MANY}
    for number in range(runs(2, 5) + 1):
        for way in MANY[:: -1 if number % 2 else 1]:
            took = six(lab, way, f"{way}-{number}", xml, create)
            if number:  # the first round warms up
                times[way].append(took)
    ours, theirs = (times[way] for way in MANY)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    details = f"{statistics.median(ours):.2f} s against {statistics.median(theirs):.2f} s, emulated, {len(ours)} runs"
    tell(pytestconfig, f"create-vm --count {SIX}, of a bare script", ratio, MANY_BARE, details)


def six(lab: Lab, way: str, name: str, xml: str, create: str) -> float:
    """Create six VMs, check them, and remove them again; return the seconds."""
    names = [f"{name}-{number}" for number in range(1, SIX + 1)]
    job = {"pattern": f"{name}-{{}}", "vms": [job_for(lab, n, xml, create) for n in names]}
    lab.run("cat > /root/job.json", stdin=json.dumps(job))
    took: dict[str, float] = json.loads(lab.run(["python3", SCRIPT, way, "/root/job.json"], timeout=600).stdout)
    assert sorted(lab.run("virsh list --name --state-running").stdout.split()) == names
    made = "".join(lab.run(["virsh", "dumpxml", n]).stdout for n in names)
    mdevs = re.findall(r"<hostdev mode='subsystem' type='mdev'.*?<address uuid='([^']+)'/>", made, re.DOTALL)
    assert sorted(lab.run(["ls", "/sys/bus/mdev/devices"]).stdout.split()) == sorted(mdevs)
    assert made.count(f"<source file='{BASE}'") == SIX
    for one_name in names:
        lab.run(f"virsh -q destroy {one_name} && virsh -q undefine {one_name}")
    lab.run(
        """for m in /sys/bus/mdev/devices/*; do echo 1 > $m/remove; done
        find /var/lib/libvirt/images -name '*many*' -delete
        rm -f /run/vgpuctl/claims/*; virsh -q pool-refresh default"""
    )
    return took["whole"]


def create_file(lab: Lab) -> str:
    """Return the sysfs file that creates an mdev of the profile."""
    kind = next(p["type_id"] for p in must(lab, "list-profiles") if p["profile"] == PROFILE)
    return f"/sys/bus/pci/devices/{IGB}/mdev_supported_types/{kind}/create"


def say(config: pytest.Config, times: dict[str, list[dict[str, float]]]) -> None:
    """Print the three ratios."""
    outside = {way: [t["whole"] - t["create"] for t in result] for way, result in times.items()}
    whole = {way: [t["whole"] for t in result] for way, result in times.items()}
    for name, measured, other, limit in (
        ("create-vm outside libvirt's create, of a bare script", outside, "bare", OUTSIDE_BARE),
        ("create-vm outside libvirt's create, of virt-install", outside, "virt-install", OUTSIDE_VIRT_INSTALL),
        ("create-vm as a whole, of a bare script", whole, "bare", WHOLE_BARE),
    ):
        ours, theirs = measured["vgpuctl"], measured[other]
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        details = (
            f"{statistics.median(ours):.2f} s against {statistics.median(theirs):.2f} s, emulated, {len(ours)} runs"
        )
        tell(config, name, ratio, limit, details)


def one(lab: Lab, way: str, name: str, xml: str, create: str) -> dict[str, float]:
    """Create one VM, check it, and remove it again; return the times."""
    job = job_for(lab, name, xml, create)
    lab.run("cat > /root/job.json", stdin=json.dumps(job))
    took: dict[str, float] = json.loads(lab.run(["python3", SCRIPT, way, "/root/job.json"], timeout=300).stdout)
    made = lab.run(["virsh", "dumpxml", name]).stdout
    assert lab.run(["virsh", "domstate", name]).stdout.strip() == "running"
    (mdev,) = re.findall(r"<hostdev mode='subsystem' type='mdev'.*?<address uuid='([^']+)'/>", made, re.DOTALL)
    assert lab.run(["ls", "/sys/bus/mdev/devices"]).stdout.split() == [mdev]
    (disk,) = re.findall(r"<source file='([^']+)'", made.partition("<backingStore")[0])
    assert json.loads(lab.run(["qemu-img", "info", "-U", "--output=json", disk]).stdout)["backing-filename"] == BASE
    assert took["create"] > 0
    lab.run(
        f"""virsh -q destroy {name} && virsh -q undefine {name} && rm -f {disk} /run/vgpuctl/claims/*
        echo 1 > /sys/bus/mdev/devices/{mdev}/remove && virsh -q pool-refresh default"""
    )
    return took


def job_for(lab: Lab, name: str, xml: str, create: str) -> dict[str, str]:
    """Return the input for each method. Its XML is vgpuctl's own with another name and other UUIDs."""
    (old,) = re.findall(r"<uuid>(.+?)</uuid>", xml)
    (old_mdev,) = re.findall(r"<address uuid='(.+?)'", xml)
    (old_disk,) = re.findall(r"<source file='(.+?)'", xml)
    mdev, disk = str(uuid.uuid4()), f"/var/lib/libvirt/images/{name}.qcow2"
    mac = f"<mac address='52:54:00:{':'.join(uuid.uuid4().hex[i : i + 2] for i in (0, 2, 4))}'/>"
    new = (
        re.sub(r"<mac address=.*?/>", mac, xml)
        .replace(old_disk, disk)
        .replace(old_mdev, mdev)
        .replace(old, str(uuid.uuid4()))
        .replace("NAME", name)
    )
    return {
        "name": name,
        "profile": PROFILE,
        "xml": new,
        "create": create,
        "mdev": mdev,
        "disk": disk,
        "volume_xml": VOLUME.format(name=name, size=64 << 20, base=BASE),
    }

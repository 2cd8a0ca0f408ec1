# SPDX-License-Identifier: Apache-2.0
"""create-vm --cloud-init and refresh-vm from the command line to the printed result, with every option."""

from __future__ import annotations

import os
import os.path
from pathlib import Path
from typing import Any

import pytest

from tests.licenses import MARKER, put_license, token_text
from tests.unit.cli.conftest import ROOT, Run

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SECRET = "hunter2"


@pytest.fixture
def user_data(tmp_path: Path) -> Path:
    path = tmp_path / "user-data"
    path.write_text(f"#cloud-config\npassword: {SECRET}\n")
    return path


@pytest.fixture
def sim_etc(sim: Run) -> Path:
    """Where /etc/vgpuctl of the simulated host is."""
    assert sim("list-gpus").status == 0
    return Path(os.environ["XDG_STATE_HOME"]) / "vgpuctl/a100-40/etc/vgpuctl"


def test_a_vm_gets_a_seed_whose_content_is_never_shown(sim: Run, user_data: Path) -> None:
    line = f"create-vm vdi-001 --profile A100-4C --image {IMAGE} --cloud-init {user_data}"
    for ran in (sim(f"{line} --dry-run"), sim(f"{line} --print-xml"), sim(f"-v {line} --json")):
        assert (ran.status, SECRET in ran.out + ran.err) == (0, False)
    assert [d["device"] for d in ran.document["data"]["disks"]] == ["disk", "cdrom"]
    assert "-seed.iso (cdrom)" in sim("show-vm vdi-001").out
    planned = sim(f"create-vm vdi-002 --profile A100-4C --image {IMAGE} --cloud-init {user_data} --dry-run --json")
    assert planned.document["data"]["sources"]["cloud_init"] == {"value": str(user_data), "source": "given"}


def test_a_spec_file_names_it_too_and_several_vms_can_have_one(sim: Run, user_data: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"name: 'vdi-{{}}'\nprofile: A100-4C\nimage: {IMAGE}\ncloud_init: {user_data}\n")
    assert sim(f"ensure-vm -f {spec} --count 2 --json").document["changed"]
    assert not sim(f"ensure-vm -f {spec} --count 2 --json").document["changed"]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (f"password: {SECRET}\n", ":1:1: cloud-init would ignore it"),
        (f"#cloud-config\npassword: [{SECRET}\n", ":3:1: it is not YAML"),
    ],
)
def test_what_cloud_init_would_ignore_is_refused_with_its_line(
    sim: Run, user_data: Path, text: str, output: str
) -> None:
    user_data.write_text(text)
    ran = sim(f"-v create-vm vdi-001 --profile A100-4C --image {IMAGE} --cloud-init {user_data}")
    assert (ran.status, SECRET in ran.err) == (2, False)
    assert f"{user_data}{output}" in ran.err
    assert sim("list-vms --json").document["data"] == []


def test_a_file_that_is_not_there_or_no_text_is_exit_2(sim: Run, user_data: Path) -> None:
    line = f"create-vm vdi-001 --profile A100-4C --image {IMAGE} --cloud-init"
    assert f"there is no user-data file {user_data}x" in sim(f"{line} {user_data}x").err
    assert "expected the absolute path of a file" in sim(f"{line} ''").err
    user_data.write_bytes(b"#cloud-config\na: \xff\n")
    assert "is not UTF-8 text" in sim(f"{line} {user_data}").err
    user_data.write_text("#cloud-config\na: 1\n")
    assert "the VM's disk would be empty" in sim(f"create-vm --profile A100-4C --cloud-init {user_data}").err


def test_before_a_refresh_the_loss_is_told_and_confirmed(sim: Run) -> None:
    assert "there is no VM vdi-001" in sim("refresh-vm vdi-001").err
    assert sim(f"create-vm vdi-001 --profile A100-4C --image {IMAGE}").status == 0
    assert "note: all data on" in sim(f"refresh-vm vdi-001 --image {IMAGE} --drain --dry-run").err
    assert sim(f"refresh-vm vdi-001 --image {IMAGE} --drain").status == 2
    ran = sim(f"--yes refresh-vm vdi-001 --image {IMAGE} --drain --json")
    assert (ran.document["changed"], ran.document["data"]["state"]) == (True, "running")


def test_a_guest_that_is_set_up_is_kept_and_brought_back(sim: Run) -> None:
    made = sim(f"create-vm vdi-001 --profile A100-4C --image {IMAGE} --off-after-setup")
    assert (made.status, "from off_after_setup" in made.err) == (0, True)
    assert "prepared:  no: its guest shuts down once it is set up" in sim("show-vm vdi-001").out
    assert "nothing was prepared for vdi-001" in sim("refresh-vm vdi-001 --drain --yes").err
    assert sim("set-vm vdi-001 --no-off-after-setup").status == 0
    running = sim("prepare-vm vdi-001")
    assert (running.status, "or use --drain" in running.err) == (3, True)
    assert sim("prepare-vm vdi-001 --drain").status == 2, "it asks"
    assert sim("prepare-vm vdi-001 --drain --dry-run").status == 0
    assert sim("stop-vm vdi-001").status == 0
    assert sim("list-vms --json").document["data"][0]["stop_reason"] == "shutdown"
    kept = sim("prepare-vm vdi-001 --json")
    assert (kept.status, kept.document["data"]["prepared"], kept.document["data"]["image"]) == (0, True, IMAGE)
    assert "prepared:  yes: refresh-vm without --image brings back" in sim("show-vm vdi-001").out
    asked = sim("refresh-vm vdi-001")
    text = "Rebuild VM vdi-001 from what prepare-vm kept? All data on /var/lib/libvirt/images/vdi-001-"
    assert (asked.status, text in asked.err) == (2, True)
    assert sim("refresh-vm vdi-001 --yes").status == 0
    again = sim("prepare-vm vdi-001")
    assert (again.status, "vdi-001 is prepared already" in again.err) == (3, True)


def write_networks(directory: Path, *addresses: str) -> None:
    """Write net-1.yaml and so on, each with one of these static addresses."""
    for number, address in enumerate(addresses, 1):
        text = f"version: 2\nethernets: {{lan: {{match: {{name: 'e*'}}, addresses: [{address}]}}}}\n"
        (directory / f"net-{number}.yaml").write_text(text)


def test_each_of_several_vms_gets_its_own_file(sim: Run, tmp_path: Path) -> None:
    write_networks(tmp_path, "192.0.2.1/24", "192.0.2.2/24", "192.0.2.3/24")
    line = f"create-vm app-{{}} --count 3 --profile A100-4C --image {IMAGE} --network-config {tmp_path}/net-{{}}.yaml"
    planned = sim(f"{line} --dry-run --json").document["data"]["sources"]["network_config"]
    assert planned["value"] == f"{tmp_path}/net-{{}}.yaml"
    steps = [step.split() for step in sim(f"{line} --dry-run").out.splitlines() if "cloud-init seed" in step]
    assert [(step[1], step[-1]) for step in steps] == [(f"app-{n}:", f"{tmp_path}/net-{n}.yaml") for n in (1, 2, 3)]
    assert sim(f"{line} --no-start").status == 0
    assert f"network-config {tmp_path}/net-2.yaml" in sim("show-vm app-2").out
    again = sim(f"{line} --json").document
    assert (again["changed"], len(again["data"]["vms"])) == (False, 3)
    more = sim(line.replace("--count 3", "--count 4"))
    assert (more.status, f"there is no network-config file {tmp_path}/net-4.yaml" in more.err) == (2, True)
    assert len(sim("list-vms --json").document["data"]) == 3


def test_several_vms_never_get_one_static_address(sim: Run, tmp_path: Path) -> None:
    write_networks(tmp_path, "192.0.2.1/24", "192.0.2.1/28")
    line = f"create-vm app-{{}} --profile A100-4C --image {IMAGE} --network-config"
    shared = sim(f"{line} {tmp_path}/net-1.yaml --count 2")
    assert shared.status == 2
    assert (
        f"{tmp_path}/net-1.yaml gives every VM the static address 192.0.2.1/24, and 2 VMs are requested" in shared.err
    )
    assert (
        f"--network-config '{tmp_path}/net-{{}}.yaml' means {tmp_path}/net-1.yaml to {tmp_path}/net-2.yaml"
        in shared.err
    )
    equal = sim(f"{line} {tmp_path}/net-{{}}.yaml --count 2")
    assert "give app-1 and app-2 the same static address 192.0.2.1/28" in equal.err
    assert sim("list-vms --json").document["data"] == []
    (tmp_path / "dhcp.yaml").write_text("{version: 2, ethernets: {lan: {dhcp4: true}}}")
    assert sim(f"{line} {tmp_path}/dhcp.yaml --count 2 --no-start").status == 0
    (tmp_path / "bad.yaml").write_text("ethernets: {}\n")
    bad = sim(f"{line} {tmp_path}/bad.yaml --count 2")
    assert (bad.status, f"{tmp_path}/bad.yaml" in bad.err) == (2, True)


def test_a_relative_path_is_below_the_working_directory(
    sim: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_networks(tmp_path, "192.0.2.1/24")
    monkeypatch.chdir(tmp_path)
    made = sim(f"create-vm vm --profile A100-4C --image {IMAGE} --network-config net-1.yaml --json")
    assert made.document["data"]["network_config"] == f"{tmp_path}/net-1.yaml"
    image = os.path.relpath(IMAGE, tmp_path)
    assert sim(f"create-vm other --profile A100-4C --image {image}").status == 0
    assert sim(f"list-images {image} --json").document["data"][0]["path"] == IMAGE


def test_the_network_card_is_in_the_plan_and_the_result(sim: Run, tmp_path: Path) -> None:
    write_networks(tmp_path, "192.0.2.1/24")
    card, mac = "bridge=br0", "52:54:00:12:34:56"
    line = f"create-vm vm --profile A100-4C --image {IMAGE} --network {card},mac={mac}"
    ran = sim(f"{line} --network-config {tmp_path}/net-1.yaml")
    assert f"network bridge=br0,mac={mac})" in ran.err
    assert f"  net   bridge br0, virtio, {mac}" in ran.out
    assert "  net " not in sim("stop-vm vm --force").out
    assert sim("start-vm vm").status == 0
    unknown = sim("show-address vm")
    assert (unknown.status, f"hint: {tmp_path}/net-1.yaml is the network configuration" in unknown.err) == (75, True)


def test_a_network_configuration_in_the_spec_itself(sim: Run, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    text = (
        f"name: vm\nprofile: A100-4C\nimage: {IMAGE}\n"
        "network_config: {version: 2, ethernets: {lan: {}, wan: {addresses: [192.0.2.7/24]}}}\n"
    )
    spec.write_text(text)
    made = sim(f"ensure-vm -f {spec} --json").document
    assert made["data"]["network_config"].startswith("network_config in the spec (sha256 ")
    assert not sim(f"ensure-vm -f {spec} --json").document["changed"]
    spec.write_text(text.replace("192.0.2.7", "192.0.2.8"))
    assert sim(f"ensure-vm -f {spec}").status == 3
    spec.write_text(text.replace("name: vm", "name: 'app-{}'"))
    assert "gives every VM the static address 192.0.2.7/24" in sim(f"ensure-vm -f {spec} --count 2").err
    spec.write_text(text.replace("version: 2, ", ""))
    assert "it has no version" in sim(f"ensure-vm -f {spec}").err


def test_programs_of_the_guest_share_its_gpu(sim: Run, tmp_path: Path) -> None:
    line = f"create-vm train-1 --profile A100-4C --image {IMAGE} --guest-sharing mps,threads=50"
    made = sim(line)
    assert "train-1-" in made.out
    assert made.err.count("warning: guest_sharing mps,threads=50: ") == 2
    assert "guest sharing: mps,threads=50" in sim("show-vm train-1").out
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"name: train-1\nprofile: A100-4C\nimage: {IMAGE}\nguest_sharing: 'mps,threads=50'\n")
    assert "nothing to do" in sim(f"ensure-vm -f {spec}").out
    spec.write_text(spec.read_text().replace("mps,threads=50", "mps:4"))
    other = sim(f"ensure-vm -f {spec} --dry-run")
    assert (other.status, "guest_sharing: mps,threads=50 -> mps:4" in other.out) == (0, True)
    assert sim(f"create-vm 'node-{{}}' --count 2 --profile A100-4C --image {IMAGE} --guest-sharing mps:4").status == 0
    assert [sim(f"show-vm node-{n} --json").document["data"]["guest_sharing"] for n in (1, 2)] == ["mps:4"] * 2


def test_the_helper_comes_by_cloud_init_and_by_hand(sim: Run) -> None:
    made = sim(f"create-vm vdi-001 --profile A100-4C --image {IMAGE} --guest-helper")
    assert (made.status, "from guest_helper" in made.err) == (0, True)
    assert "helper:    cloud-init brings it; it has not reported" in sim("show-vm vdi-001").out
    taken = sim("set-vm vdi-001 --no-guest-helper")
    assert (taken.status, "guest_helper: true -> false" in taken.err) == (0, True)
    program = sim("print-helper")
    assert program.out == (ROOT / "templates/guest/vgpuctl_guest.py").read_text()
    windows = sim("print-helper --os windows --json").document["data"]
    assert windows == {"os": "windows", "program": (ROOT / "templates/guest/vgpuctl_guest.ps1").read_text()}


@pytest.mark.parametrize("line", ["message-vm vdi-001 --text hi", "allow-logon vdi-001 --user ada",
                                  "shutdown-in vdi-001 --minutes 5", "shutdown-in vdi-001 --cancel"])  # fmt: skip
def test_a_command_without_the_agent_cannot_reach_the_helper(sim: Run, line: str) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    ran = sim(line)
    assert (ran.status, "only the host agent can reach the helper" in ran.err) == (6, True)
    assert ("no QEMU guest agent answers" in ran.err) is not line.startswith("allow-logon")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("shutdown-in vdi-001", "specify one of --minutes N"),
        ("shutdown-in vdi-001 --minutes 5 --cancel", "specify one of --minutes N"),
        ("shutdown-in vdi-001 --cancel --text x", "specify one of --minutes N"),
        ("shutdown-in vdi-001 --minutes 1441", "1441 is not 0 to 1440"),
        ("message-vm vdi-001", "--text"),
        ("message-vm vdi-001 --text ''", "it is empty"),
        ("message-vm vdi-001 --text 'a\nb'", "it has a line break"),
        (f"message-vm vdi-001 --text {'x' * 1001}", "1001 characters, at most 1000"),
        ("message-vm vdi-001 --text " + "\N{SNOWMAN}" * 700, "too long for one line"),
        ("allow-logon vdi-001", "specify one of --user USER, --nobody and --everybody"),
        ("allow-logon vdi-001 --user ada --everybody", "specify one of --user USER, --nobody and --everybody"),
        ("allow-logon vdi-001 --nobody --everybody", "specify one of --user USER, --nobody and --everybody"),
        (f"allow-logon vdi-001 --user {'a' * 300}", "is not the name of a user"),
        ("allow-logon vdi-001 --user 'a b'", "'a b' is not the name of a user"),
        ("allow-logon vdi-001 --user all", "'all' is not the name of a user"),
        ("allow-logon vdi-001 --user a:b", "'a:b' is not the name of a user"),
        ("print-helper --os beos", "beos"),
    ],
)
def test_bad_requests_to_helpers_are_refused_first(sim: Run, line: str, message: str) -> None:
    ran = sim(line)
    assert (ran.status, message in ran.err) == (2, True), ran.err


def holders_of_marker(etc: Path) -> list[Path]:
    """Return the files of the simulated host that have the token in them."""
    files = (path for path in etc.parent.parent.rglob("*") if path.is_file())
    return [path for path in files if MARKER.encode() in path.read_bytes()]


def test_a_license_is_given_and_never_shown(sim: Run, sim_etc: Path) -> None:
    line = f"create-vm vdi-001 --profile A100-4C --image {IMAGE} --license cad"
    missing = sim(line)
    assert (missing.status, "there is no license cad on this host: there is none" in missing.err) == (2, True)
    folder = put_license(sim_etc)
    ran = [sim(f"{line} --dry-run"), sim(f"{line} --print-xml"), sim(f"-v {line} --json"), sim("show-vm vdi-001")]
    assert [(one.status, MARKER in one.out + one.err) for one in ran] == [(0, False)] * 4
    assert "license:   cad" in ran[-1].out
    holders = holders_of_marker(sim_etc)
    assert sorted(path.parent.name for path in holders) == ["cad", "volumes"]
    assert sim("refresh-license vdi-001 --clear").status == 0
    assert [path.parent for path in holders_of_marker(sim_etc)] == [folder]
    again = sim("refresh-license vdi-001")
    assert (again.status, "note: the guest of vdi-001 gets it at its next boot" in again.err) == (0, True)
    assert len(holders_of_marker(sim_etc)) == 2
    assert sim("create-vm vdi-002 --profile A100-4C").status == 0
    assert "left alone" in sim("refresh-license 'vdi-*'").err


@pytest.mark.parametrize(
    ("files", "status", "message"),
    [
        ({"a_tok": token_text(exp=1)}, 2, "the token of the license cad expired at 1970-01-01"),
        ({"a_tok": MARKER}, 2, "/etc/vgpuctl/licenses/cad/a.tok: it is no JSON Web Token"),
        (
            {"a_tok": token_text(), "mode": 0o640},
            3,
            "the license cad is not root's alone: /etc/vgpuctl",
        ),
        ({"a_tok": token_text(), "feature": "2"}, 2, "the license cad is for a whole GPU"),
    ],
)
def test_a_license_that_guests_cannot_use_is_refused(
    sim: Run, sim_etc: Path, files: dict[str, Any], status: int, message: str
) -> None:
    put_license(sim_etc, **files)
    ran = sim(f"create-vm vm --profile A100-4C --image {IMAGE} --license cad")
    assert (ran.status, message in ran.err, MARKER in ran.err) == (status, True, False)
    assert sim("list-vms --json").document["data"] == []

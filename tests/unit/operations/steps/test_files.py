# SPDX-License-Identifier: Apache-2.0
"""Files as steps: host.yaml, claims, the run directory and half-written files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.faults import failing
from tests.hosts import open_sim_host
from tests.values import A4C, a100, assigned, claim
from vgpuctl.errors import Busy, Exists, Failed, FileFailed, HostCannot, InUse, InvalidInput, VerifyFailed
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import GPU_SETUP_CLAIM, HostVgpu, ProcessId, UnfinishedFile
from vgpuctl.operations.diagnose import RUN_PATH, RestrictRunDirectory
from vgpuctl.operations.steps.claims import ReleaseClaim, TakeClaim
from vgpuctl.operations.steps.host_file import AddVgpuEntry, RemoveVgpuEntry, ReplaceHostFile, SetGpuKeys
from vgpuctl.operations.unowned import RemoveUnfinishedFile
from vgpuctl.ports.system import EMPTY_HOST_FILE
from vgpuctl.value import replace

GPU = "0000:3b:00.0"
CORDON = SetGpuKeys(GPU, {"cordoned": True}, {"cordoned": None})


class File:
    """A file that stores a text, and can refuse or lose a write."""

    def __init__(self, text: str | None = None, refusal: Exception | None = None, lost: bool = False) -> None:
        self.text, self.refusal, self.lost = text, refusal, lost

    def read(self) -> str | None:
        return self.text

    def replace(self, text: str, expected: str | None, *, is_undo: bool = False) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert expected == self.text
        self.text = self.text if self.lost else text


def host_with(tmp_path, file):
    return replace(open_sim_host(tmp_path).ports, host_file=file)


def test_undo_keeps_other_changes(tmp_path):
    file = File()
    ports = host_with(tmp_path, file)
    step = SetGpuKeys(GPU, {"mode": "vgpu"}, {"mode": "sriov"})
    step.perform(ports)
    file.text = file.text.replace("vgpu", "unmanaged")
    step.undo(ports)
    assert "unmanaged" in file.text


def test_a_write_that_is_lost_is_noticed(tmp_path):
    ports = host_with(tmp_path, File(lost=True))
    CORDON.perform(ports)
    with pytest.raises(VerifyFailed):
        CORDON.verify(ports)


@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [(errno.EROFS, HostCannot, "read-only"), (errno.EACCES, HostCannot, "root"), (errno.ENOSPC, Failed, "df /etc")],
)
def test_write_errors_are_explained(tmp_path, number, kind, hint):
    refusal = OSError(number, os.strerror(number))
    with pytest.raises(kind) as raised:
        CORDON.perform(host_with(tmp_path, File(refusal=refusal)))
    assert os.strerror(number) in str(raised.value)
    assert hint in str(raised.value.hint)
    assert raised.value.facts["errno"] == number


def test_a_concurrent_change_and_a_broken_file_keep_their_error(tmp_path):
    with pytest.raises(Busy):
        CORDON.perform(host_with(tmp_path, File(refusal=Busy("changed"))))
    with pytest.raises(InvalidInput):
        CORDON.perform(host_with(tmp_path, File("version: [")))
    with pytest.raises(HostCannot, match="is not accessible"):
        CORDON.perform(replace(open_sim_host(tmp_path).ports, host_file=None))


def test_describe_gpu_keys():
    assert CORDON.describe() == f"write 'cordoned: true' for GPU {GPU} to /etc/vgpuctl/host.yaml"
    step = SetGpuKeys(GPU, {"mode": "vgpu", "vfs": None}, {"mode": "sriov", "vfs": 4})
    assert step.describe() == f"write 'mode: vgpu; no vfs' for GPU {GPU} to /etc/vgpuctl/host.yaml"


SPARE = HostVgpu("spare", "A100-4C", GPU, "0000:3b:00.4", "frame_rate_limiter=0")


def test_a_vgpu_is_written_read_back_and_taken_back(tmp_path):
    ports = open_sim_host(tmp_path).ports
    keep = AddVgpuEntry(SPARE)
    with pytest.raises(VerifyFailed):
        keep.verify(ports)
    keep.perform(ports)
    keep.verify(ports)
    with pytest.raises(Exists):
        keep.perform(ports)
    with pytest.raises(VerifyFailed):
        RemoveVgpuEntry(SPARE).verify(ports)
    keep.undo(ports)
    keep.undo(ports)
    RemoveVgpuEntry(SPARE).perform(ports)
    RemoveVgpuEntry(SPARE).verify(ports)
    assert ports.host_file.read() == "version: 1\n"


def test_an_entry_that_somebody_changed_is_not_taken_back(tmp_path):
    ports = open_sim_host(tmp_path).ports
    AddVgpuEntry(replace(SPARE, profile="A100-5C")).perform(ports)
    AddVgpuEntry(SPARE).undo(ports)
    assert "A100-5C" in ports.host_file.read()


class Contended(File):
    """A file that others change just before the first writes."""

    def __init__(self, times: int) -> None:
        super().__init__("version: 1\n")
        self.times = times

    def replace(self, text: str, expected: str | None, *, is_undo: bool = False) -> None:
        if self.times:
            self.times -= 1
            self.text = f"{self.text}# {self.times}\n"
            raise Busy("changed meanwhile")
        super().replace(text, expected)


def test_a_write_that_comes_second_is_made_on_what_the_first_wrote(tmp_path):
    file = Contended(19)
    AddVgpuEntry(SPARE).perform(host_with(tmp_path, file))
    assert file.text.count("#") == 19
    assert "spare" in file.text
    with pytest.raises(Busy):
        AddVgpuEntry(SPARE).perform(host_with(tmp_path, Contended(10_000)))


@pytest.mark.parametrize("was", [None, "version: 1  # before\n"])
def test_a_whole_file_is_put_in_place_and_taken_back(tmp_path, was):
    file = File(was)
    ports = host_with(tmp_path, file)
    step = ReplaceHostFile("version: 1\n# after\n", was, "FILE")
    step.perform(ports)
    step.verify(ports)
    assert file.text == step.text
    step.undo(ports)
    assert file.text == ("version: 1\n" if was is None else was)
    step.undo(ports)


def test_a_whole_file_that_was_lost_or_changed_meanwhile_is_noticed_and_left(tmp_path):
    step = ReplaceHostFile("version: 1\n", "version: 1  # before\n", "FILE")
    lost = host_with(tmp_path / "a", File(step.previous_text, lost=True))
    step.perform(lost)
    with pytest.raises(VerifyFailed, match="reads differently"):
        step.verify(lost)
    other = File("version: 1  # another\n")
    step.undo(host_with(tmp_path / "b", other))
    assert other.text == "version: 1  # another\n"
    for error, kind in ((OSError(errno.EROFS, "read-only"), HostCannot), (OSError(errno.ENOSPC, "full"), Failed)):
        with pytest.raises(kind, match="cannot be written"):
            step.perform(host_with(tmp_path / kind.__name__, File(step.previous_text, refusal=error)))


STEPS = {
    "keys": CORDON,
    "vgpu": AddVgpuEntry(SPARE),
    "whole": ReplaceHostFile("version: 1\n# after\n", "version: 1  # before\n", "FILE"),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_change_that_is_taken_back_leaves_the_versions_as_they_were(tmp_path, kind):
    """The version before is kept when the step is done, and is the file itself again when it is undone."""
    ports, step = open_sim_host(tmp_path).ports, STEPS[kind]
    ports.host_file.replace("version: 1  # first\n", None)
    ports.host_file.replace("version: 1  # before\n", "version: 1  # first\n")
    step.perform(ports)
    step.verify(ports)
    assert [ports.host_file.previous_version(n) for n in (1, 2, 3)] == [
        "version: 1  # before\n",
        "version: 1  # first\n",
        EMPTY_HOST_FILE,
    ]
    step.undo(ports)
    assert ports.host_file.read().strip() == "version: 1  # before"
    assert [ports.host_file.previous_version(n) for n in (1, 2)] == ["version: 1  # first\n", EMPTY_HOST_FILE]


@pytest.fixture
def host(tmp_path):
    opened = open_sim_host(tmp_path)
    opened.sim.run_dir.chmod(0o777)
    return opened


def mode(host) -> int:
    return host.ports.sysfs.permissions(RUN_PATH).mode


def test_it_is_changed_read_back_and_put_back(host):
    step = RestrictRunDirectory(0o777)
    assert step.describe() == "change the mode of /run/vgpuctl from 0777 to 0700"
    step.perform(host.ports)
    step.verify(host.ports)
    assert mode(host) == 0o700
    step.undo(host.ports)
    assert mode(host) == 0o777


def test_an_unset_mode_is_noticed_and_another_programs_mode_stays(host):
    step = RestrictRunDirectory(0o777)
    with pytest.raises(VerifyFailed):
        step.verify(host.ports)
    host.sim.run_dir.chmod(0o750)
    step.undo(host.ports)
    assert mode(host) == 0o750


def test_an_os_error_has_its_errno(host):
    class Refusing:
        def set_permissions(self, mode: int) -> None:
            raise PermissionError(1, "Operation not permitted", RUN_PATH)

    with pytest.raises(Failed) as caught:
        RestrictRunDirectory(0o777).perform(replace(host.ports, claims=Refusing()))
    assert caught.value.facts == {"path": RUN_PATH, "errno": 1}


def test_it_is_removed_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    path = tmp_path / ".host.yaml.vgpuctl-4194399-1"
    path.write_text("")
    step = RemoveUnfinishedFile(UnfinishedFile(str(path), ProcessId(4194399, 1)))
    assert step.describe() == f"remove {path}"
    with pytest.raises(FileFailed, match=f"{path} cannot be removed") as raised:
        step.perform(failing(host.ports, 1))
    assert raised.value.facts["path"] == str(path)
    step.perform(host.ports)
    step.perform(host.ports)
    assert not path.exists()


MINE, THEIRS = claim(assigned(a100(), A4C), 1), claim(assigned(a100(), A4C), 2)


def test_a_vm_that_has_its_claim_already_may_take_it_again(tmp_path):
    ports = open_sim_host(tmp_path).ports
    for _ in range(2):
        TakeClaim(MINE).perform(ports)
    assert ports.claims.all() == (MINE,)


def test_another_vms_claim_is_neither_overwritten_nor_removed(tmp_path):
    ports = open_sim_host(tmp_path).ports
    TakeClaim(THEIRS).perform(ports)
    with pytest.raises(InUse) as raised:
        TakeClaim(MINE).perform(ports)
    assert "claimed for VM vdi-002, by process 100: vgpuctl create-vm" in str(raised.value)
    assert "vgpuctl reconcile-host" in str(raised.value.hint)
    assert (raised.value.facts["carrier"], raised.value.facts["pid"]) == (MINE.carrier, 100)
    TakeClaim(MINE).undo(ports)
    ReleaseClaim(MINE.carrier, MINE.vm_uuid).perform(ports)
    assert ports.claims.all() == (THEIRS,)


def test_a_gpu_in_setup_is_claimed_without_vm(tmp_path):
    ports = open_sim_host(tmp_path).ports
    TakeClaim(replace(THEIRS, vm=GPU_SETUP_CLAIM, command="vgpuctl set-mig 0000:3b:00.0 --off")).perform(ports)
    with pytest.raises(InUse) as raised:
        TakeClaim(MINE).perform(ports)
    assert "is claimed to set it up, by process 100: vgpuctl set-mig 0000:3b:00.0 --off" in str(raised.value)
    assert raised.value.facts["vm"] is None


def test_an_unreadable_claim_is_in_use_and_shown_with_its_path(tmp_path):
    host = open_sim_host(tmp_path)
    TakeClaim(THEIRS).perform(host.ports)
    file = host.sim.run_dir / "claims" / MINE.carrier
    file.write_text("{")
    with pytest.raises(InUse) as raised:
        TakeClaim(MINE).perform(host.ports)
    assert f"the owner cannot be read: {file}" in str(raised.value)
    assert f"rm {file}" in str(raised.value.hint)
    assert raised.value.facts == {"carrier": MINE.carrier, "path": str(file)}
    TakeClaim(MINE).undo(host.ports)
    assert file.read_text() == "{"


@pytest.mark.parametrize(("broken", "message"), [(False, "until a moment ago"), (True, "cannot be read")])
def test_a_vanished_or_unreadable_claim_is_a_vgpuctl_error(tmp_path, broken, message):
    ports = open_sim_host(tmp_path).ports

    class Racing:
        def add(self, claim):
            raise FileExistsError(17, "File exists", "/run/vgpuctl/claims/x")

        def read(self):
            if broken:
                raise OSError(5, "Input/output error")
            return ports.claims.read()

    with pytest.raises(InUse, match=message):
        TakeClaim(MINE).perform(replace(ports, claims=Racing()))


@pytest.mark.parametrize("step", [TakeClaim(MINE), ReleaseClaim(MINE.carrier, MINE.vm_uuid)])
def test_a_claim_that_cannot_be_written_or_removed_is_an_error_with_its_number(tmp_path, step):
    with pytest.raises(Failed) as raised:
        step.perform(failing(open_sim_host(tmp_path).ports, 1))
    assert {key: raised.value.facts[key] for key in ("carrier", "errno")} == {"carrier": MINE.carrier, "errno": 28}
    assert "/run" in str(raised.value.hint)


def test_texts_name_what_and_where():
    assert TakeClaim(MINE).describe() == "claim 0000:3b:00.4 on GPU 0000:3b:00.0 for A100-4C"
    setting_up = replace(MINE, vm=GPU_SETUP_CLAIM, carrier=MINE.gpu, backend=Backend.PASSTHROUGH, profile=None)
    assert TakeClaim(setting_up).describe() == "claim all of GPU 0000:3b:00.0 while it is set up"
    assert ReleaseClaim("x", "y").describe() == "release the claim on x"

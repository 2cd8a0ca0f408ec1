# SPDX-License-Identifier: Apache-2.0
"""One opened host, used by several threads: each call is an operation of its own, and a read is none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

import vgpuctl
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.library import open_ports
from vgpuctl.model.outcome import NoProgress

HOST = "sim:a100-40"
WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class StopsAt(NoProgress):
    """Progress that keeps the work before its first step with `word` until the test lets it continue."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.reached, self.resume = Event(), Event()

    def on_step_start(self, number: int, text: str) -> None:
        if self.word in text and not self.reached.is_set():
            self.reached.set()
            assert self.resume.wait(WAIT_SECONDS)


@pytest.fixture
def at_the_domain() -> Iterator[StopsAt]:
    progress = StopsAt("define")
    yield progress
    progress.resume.set()


def halfway(threads: ThreadPoolExecutor, progress: StopsAt, create: Callable[[], object]) -> Future[object]:
    """Begin to create a VM in a thread, and return when it waits: its vGPU is there, and its domain is not."""
    running = threads.submit(create)
    assert progress.reached.wait(WAIT_SECONDS), running
    return running


def state_directory() -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "vgpuctl" / "a100-40"


def operations() -> list[str]:
    return sorted(os.listdir(state_directory() / "run" / "operations"))


def entries() -> list[dict[str, object]]:
    return [json.loads(line) for line in (state_directory() / "audit.jsonl").read_text().splitlines()]


def open_files() -> list[str]:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.islink(link)]


def refused(host: vgpuctl.GpuHost) -> None:
    with pytest.raises(NotFound):
        host.delete_vm("nobody")


READS: dict[str, Callable[[vgpuctl.GpuHost], object]] = {
    "list-vms": lambda host: host.list_vms(),
    "vm-names": lambda host: host.vm_names(),
    "dry-run": lambda host: host.create_vm("other", profile="A100-4C", dry_run=True),
    "query-each": lambda host: host.query_each(["a"], lambda _: host.show_gpu("0000:3b:00.0")),
    "batch": lambda host: host.for_each(
        "stop-vm", ["old"], lambda one, name: one.stop_vm(name, dry_run=True), dry_run=True
    ),
    "refused": refused,
}


@pytest.mark.parametrize("read", READS)
def test_a_read_does_not_end_what_another_thread_does(
    threads: ThreadPoolExecutor, at_the_domain: StopsAt, read: str
) -> None:
    vgpuctl.open_host(HOST).create_vm("old", profile="A100-4C")
    host = vgpuctl.open_host(HOST, progress=at_the_domain)
    creating = halfway(threads, at_the_domain, lambda: host.create_vm("vm", profile="A100-4C"))
    alive = operations()
    assert len(alive) == 1
    READS[read](host)
    assert operations() == alive
    assert not vgpuctl.open_host(HOST).reconcile_host().data.findings
    at_the_domain.resume.set()
    assert creating.result(WAIT_SECONDS)
    assert {str(vm.name): str(vm.state) for vm in host.list_vms().data} == {"old": "running", "vm": "running"}
    assert operations() == []


def test_a_change_in_another_thread_has_its_own_operation_and_its_own_entry(
    threads: ThreadPoolExecutor, at_the_domain: StopsAt
) -> None:
    vgpuctl.open_host(HOST).create_vm("old", profile="A100-4C")
    host = vgpuctl.open_host(HOST, progress=at_the_domain)
    creating = halfway(threads, at_the_domain, lambda: host.create_vm("vm", profile="A100-4C"))
    (alive,) = operations()
    host.delete_vm("old")
    assert operations() == [alive]
    assert {claim.operation for claim in open_ports(HOST).claims.all()} == {alive}
    at_the_domain.resume.set()
    creating.result(WAIT_SECONDS)
    _, deleted, created = entries()
    assert (deleted["command"], deleted["vms"]) == ("delete-vm", ["old"])
    assert (created["command"], created["vms"]) == ("create-vm", ["vm"])
    assert all("vm old" not in str(step).lower() for step in created["plan"])


def test_many_threads_create_with_one_host_while_others_read_and_reconcile(threads: ThreadPoolExecutor) -> None:
    host, together = vgpuctl.open_host(HOST), Barrier(8)

    def create(number: int) -> bool:
        together.wait(WAIT_SECONDS)
        changed = host.create_vm(f"vm-{number}", profile="A100-4C").changed
        return changed and str(host.show_vm(f"vm-{number}").data.state) == "running"

    def read(number: int) -> bool:
        together.wait(WAIT_SECONDS)
        return all(host.list_vms() and host.reconcile_host() for _ in range(number))

    running = [*(threads.submit(create, number) for number in range(6)), *(threads.submit(read, 5) for _ in range(2))]
    assert all(future.result(WAIT_SECONDS) for future in running)
    assert len(host.list_vms().data) == 6
    assert operations() == []


def test_a_closed_host_names_itself_and_its_running_call_comes_to_its_end(
    threads: ThreadPoolExecutor, at_the_domain: StopsAt
) -> None:
    with vgpuctl.open_host(HOST, progress=at_the_domain) as host:
        creating = halfway(threads, at_the_domain, lambda: host.create_vm("vm", profile="A100-4C"))
    for call in (host.list_vms, lambda: host.delete_vm("vm"), lambda: host.for_each("stop-vm", ["vm"], print)):
        with pytest.raises(InvalidInput, match="host sim:a100-40 is closed") as refused:
            call()
        assert refused.value.hint == "open it again with vgpuctl.open_host"
    at_the_domain.resume.set()
    creating.result(WAIT_SECONDS)
    assert [vm.name for vm in vgpuctl.open_host(HOST).list_vms().data] == ["vm"]


def test_a_closed_host_and_the_hosts_of_a_batch_keep_no_file_open() -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vms("vdi-{}", 4, profile="A100-4C", parallel=4)
        host.for_each("stop-vm", ["vdi-1", "vdi-2"], lambda one, name: one.stop_vm(name), parallel=2)
    host.close()
    assert not [path for path in open_files() if path.startswith(str(state_directory()))]

# SPDX-License-Identifier: Apache-2.0
"""Several threads of one process share the ports, because `--parallel` creates VMs in threads."""

from __future__ import annotations

import threading

import pytest

from tests.contract.site import Site, new_uuid
from tests.contract.test_libvirt import DOMAIN
from vgpuctl.errors import VgpuctlError

pytestmark = pytest.mark.forms("mdev-pf")
THREADS, EACH, WAIT_SECONDS = 4, 3, 120.0


def test_threads_define_and_undefine_at_the_same_time_and_each_sees_its_own(site: Site) -> None:
    hypervisor, ready = site.ports.hypervisor, threading.Barrier(THREADS)
    failures: list[object] = []

    def work(thread: int) -> None:
        ready.wait(WAIT_SECONDS)
        for number in range(EACH):
            name, uuid = f"contract-t{thread}-{number}", new_uuid()
            try:
                hypervisor.define(DOMAIN.format(name=name, uuid=uuid, devices="", cpu=""))
                result = hypervisor.find_domain(name)
                if result is None or result.uuid != uuid or name not in [d.name for d in hypervisor.domains()]:
                    failures.append((name, result))
                hypervisor.undefine(uuid)
            except VgpuctlError as error:
                failures.append((name, error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not failures
    assert not [d.name for d in hypervisor.domains() if d.name.startswith("contract-t")]


def test_an_error_reaches_the_thread_that_caused_it_and_no_other(site: Site) -> None:
    hypervisor, ready = site.ports.hypervisor, threading.Barrier(THREADS)
    results: dict[int, object] = {}

    def work(thread: int) -> None:
        ready.wait(WAIT_SECONDS)
        try:
            if thread % 2:
                hypervisor.start(new_uuid())
            else:
                results[thread] = hypervisor.find_domain("nobody")
        except VgpuctlError as error:
            results[thread] = error.facts["libvirt_code"]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert results == {0: None, 1: 42, 2: None, 3: 42}

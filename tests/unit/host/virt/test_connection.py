# SPDX-License-Identifier: Apache-2.0
"""Opening the connection and explaining errors."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from threading import enumerate as enumerate_threads

import libvirt
import pytest

from vgpuctl.errors import HostCannot, InvalidInput, LibvirtFailed
from vgpuctl.host.virt import constants
from vgpuctl.host.virt.connection import LibvirtConnection, require_local_uri


@pytest.mark.parametrize(
    "uri", ["qemu:///system", "qemu:///session", "qemu+unix:///system?socket=/x", "test:///default"]
)
def test_uris_of_this_host(uri):
    assert require_local_uri(uri) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "qemu+ssh://root@other/system",
        "qemu://other/system",
        "qemu+tcp:///system",
        "xen:///system",
        "/x",
        "qemu:/system",
        "",
    ],
)
def test_other_hosts_and_drivers_are_refused(uri):
    with pytest.raises(InvalidInput, match="on this host"):
        require_local_uri(uri)


def test_the_default_uri_is_the_systems():
    assert LibvirtConnection(None, lambda: False).uri == "qemu:///system"


def test_it_says_that_it_answers(connection, host):
    status = connection.status()
    assert (status.available, status.uri, status.reason) == (True, host, None)
    assert status.libvirt_version >= 9_000_000
    assert status.qemu_version is None


def test_a_daemon_that_is_not_there(tmp_path):
    uri = f"qemu+unix:///system?socket={tmp_path}/none"
    connection = LibvirtConnection(uri, lambda: False)
    status = connection.status()
    assert not status.available
    assert f"{tmp_path}/none" in status.reason
    with pytest.raises(HostCannot) as caught, connection.call("virConnectListAllDomains", "cannot list VMs"):
        pass
    assert caught.value.facts["check"] == "libvirt"
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_SYSTEM_ERROR
    assert "systemctl start libvirtd" in caught.value.hint


def test_no_call_is_made_under_the_host_lock(connection, lock):
    lock.on = True
    with pytest.raises(AssertionError):
        connection.status()
    with pytest.raises(AssertionError), connection.call("x", "cannot"):
        pass


def raised(connection, code, failure="cannot start VM a"):
    """Return the exception for a libvirt error with this number."""
    error = libvirt.libvirtError("x")
    error.err = (code, 10, "what libvirt says", 2, None, None, None, -1, -1)
    with pytest.raises((LibvirtFailed, HostCannot)) as caught, connection.call("virDomainCreate", failure, vm="a"):
        raise error
    assert caught.value.__cause__ is error
    return caught.value


def test_an_error_says_what_could_not_be_done_and_what_libvirt_says(connection):
    error = raised(connection, constants.VIR_ERR_CONFIG_UNSUPPORTED)
    assert isinstance(error, LibvirtFailed)
    assert error.message == "cannot start VM a: what libvirt says"
    assert error.hint == constants.ERROR_HINTS[constants.VIR_ERR_CONFIG_UNSUPPORTED]
    assert error.facts == {"libvirt_code": 67, "libvirt_domain": 10, "call": "virDomainCreate", "vm": "a"}


@pytest.mark.parametrize("code", sorted(constants.PERMISSION_ERRORS))
def test_a_right_that_is_missing_is_the_hosts_to_give(connection, code):
    error = raised(connection, code)
    assert isinstance(error, HostCannot)
    assert "group libvirt" in error.hint


def test_a_connection_that_broke_is_opened_again(connection):
    with connection.call("x", "cannot") as first:
        pass
    assert isinstance(raised(connection, constants.VIR_ERR_RPC), HostCannot)
    with connection.call("x", "cannot") as second:
        assert second is not first
    assert isinstance(raised(connection, constants.VIR_ERR_SYSTEM_ERROR), LibvirtFailed)
    with connection.call("x", "cannot") as third:
        assert third is second


def test_libvirt_prints_nothing_by_itself(host):
    code = (
        "from vgpuctl.host.virt.connection import LibvirtConnection\n"
        "from vgpuctl.host.virt.domains import LibvirtHypervisor\n"
        "from vgpuctl.host.processes import HostClock\n"
        f"assert LibvirtHypervisor(LibvirtConnection({host!r}, lambda: False), HostClock()).find_domain('none') is None"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_flags_that_the_binding_lacks_are_left_out(connection):
    assert connection.combine_flags("VIR_DOMAIN_UNDEFINE_NVRAM", "VIR_DOMAIN_UNDEFINE_MANAGED_SAVE", "VIR_OF_2040") == 5


def test_an_error_whose_number_was_reset_before_it_was_read_still_has_it(connection):
    """As if the garbage collector frees a domain between libvirt's call and the creation of the exception."""

    def lost(connect: libvirt.virConnect) -> None:
        kept = libvirt.open("test:///default").lookupByName("test")
        try:
            connect.lookupByName("nobody")
        except libvirt.libvirtError:
            del kept  # virDomainFree, which resets libvirt's last error
            raise libvirt.libvirtError("virDomainLookupByName() failed") from None

    with (
        pytest.raises(LibvirtFailed, match="Domain not found") as caught,
        connection.call("virDomainLookupByName", "cannot find it") as connect,
    ):
        lost(connect)
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_NO_DOMAIN
    assert connection.look_up(constants.VIR_ERR_NO_DOMAIN, lambda: lost(libvirt.open(connection.uri))) is None


def test_operations_in_threads_share_one_event_loop_and_each_gets_its_events():
    """Two threads listen at once, each to its own connection; one thread of the process runs libvirt's event loop."""
    both_listen = Barrier(3)

    def listen(number):
        seen = Event()
        with LibvirtConnection("test:///default", lambda: False).listen("listen", "cannot watch") as connect:
            connect.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lambda *_: seen.set(), None)
            both_listen.wait(30)
            assert seen.wait(30), number
        return number

    with ThreadPoolExecutor(2) as threads:
        listening = [threads.submit(listen, number) for number in range(2)]
        both_listen.wait(30)
        with LibvirtConnection("test:///default", lambda: False).call("suspend", "cannot suspend") as connect:
            connect.lookupByName("test").suspend()
            connect.lookupByName("test").resume()
        assert [each.result() for each in listening] == [0, 1]
    assert [t.name for t in enumerate_threads()].count("libvirt-events") == 1


def test_threads_share_one_connection_until_it_is_closed(connection):
    together = Barrier(4)

    def read_connection(_number: int) -> object:
        together.wait(10)
        with connection.call("virConnectGetVersion", "cannot read libvirt's version") as connect:
            return connect

    with ThreadPoolExecutor(4) as threads:
        (shared,) = set(threads.map(read_connection, range(4)))
    connection.close()
    connection.close()
    with pytest.raises(libvirt.libvirtError):
        shared.getURI()

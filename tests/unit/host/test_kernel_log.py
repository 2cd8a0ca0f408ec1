# SPDX-License-Identifier: Apache-2.0
"""The kernel log, from the first command that shows it."""

from vgpuctl.host.kernel_log import HostKernelLog

ECHO = ["/bin/echo", "NVRM: one\nother\nNVRM: two"]
NOTHING, FAILS = ["/bin/true"], ["/bin/false"]


def test_only_lines_with_the_text_are_returned():
    assert HostKernelLog([ECHO]).kernel_lines("NVRM") == ("NVRM: one", "NVRM: two")
    assert HostKernelLog([ECHO]).kernel_lines("one", "other") == ("NVRM: one", "other")


def test_a_command_that_is_missing_or_may_not_see_it_is_passed_over():
    assert HostKernelLog([["/nonexistent"], ["/bin/false"], ECHO]).kernel_lines("two") == ("NVRM: two",)
    assert HostKernelLog([NOTHING, ECHO]).kernel_lines("two") == ("NVRM: two",)


def test_an_unavailable_log_is_not_empty():
    assert HostKernelLog([FAILS]).kernel_lines("NVRM") is None
    assert HostKernelLog([NOTHING]).kernel_lines("NVRM") is None, "a kernel without a line there is none"
    assert HostKernelLog(services=[FAILS]).service_lines("nvidia-vgpud") is None
    assert HostKernelLog(services=[]).service_lines("nvidia-vgpud") is None


def test_service_lines_come_by_unit_and_may_be_empty():
    assert HostKernelLog(services=[["/bin/echo", "said\n"]]).service_lines("x") == ("said", " -u x.service")
    assert HostKernelLog(services=[NOTHING]).service_lines("x") == ()


def test_this_hosts_own_log_is_text_or_nothing():
    assert all("x" in line for line in HostKernelLog().kernel_lines("x") or ())
    HostKernelLog().service_lines("nvidia-vgpud")

# SPDX-License-Identifier: Apache-2.0
"""The kernel log, by the first command that shows it."""

from vgpuctl.host.kernel_log import HostKernelLog

ECHO = ["/bin/echo", "NVRM: one\nother\nNVRM: two"]
NOTHING, FAILS = ["/bin/true"], ["/bin/false"]


def test_only_lines_with_the_text_are_returned():
    assert HostKernelLog([ECHO]).lines("NVRM") == ("NVRM: one", "NVRM: two")
    assert HostKernelLog([ECHO]).lines("one", "other") == ("NVRM: one", "other")


def test_a_command_that_is_missing_or_may_not_see_it_is_passed_over():
    assert HostKernelLog([["/nonexistent"], ["/bin/false"], ECHO]).lines("two") == ("NVRM: two",)
    assert HostKernelLog([NOTHING, ECHO]).lines("two") == ("NVRM: two",)


def test_a_log_that_nobody_shows_is_not_an_empty_one():
    assert HostKernelLog([FAILS]).lines("NVRM") is None
    assert HostKernelLog([NOTHING]).lines("NVRM") is None, "a kernel without a line there is none"
    assert HostKernelLog(services=[FAILS]).service_lines("nvidia-vgpud") is None
    assert HostKernelLog(services=[]).service_lines("nvidia-vgpud") is None


def test_a_service_is_asked_for_by_its_unit_and_may_have_said_nothing():
    assert HostKernelLog(services=[["/bin/echo", "said\n"]]).service_lines("x") == ("said", " -u x.service")
    assert HostKernelLog(services=[NOTHING]).service_lines("x") == ()


def test_this_hosts_own_log_is_text_or_nothing():
    assert all("x" in line for line in HostKernelLog().lines("x") or ())
    HostKernelLog().service_lines("nvidia-vgpud")

# SPDX-License-Identifier: Apache-2.0
"""The kernel log, by the first command that shows it."""

from vgpuctl.host.kernel_log import HostKernelLog

ECHO = ["/bin/echo", "NVRM: one\nother\nNVRM: two"]


def test_only_lines_with_the_text_are_returned():
    assert HostKernelLog([ECHO]).lines("NVRM") == ("NVRM: one", "NVRM: two")


def test_a_command_that_is_missing_or_may_not_see_it_is_passed_over():
    assert HostKernelLog([["/nonexistent"], ["/bin/false"], ECHO]).lines("two") == ("NVRM: two",)
    assert HostKernelLog([["/bin/false"]]).lines("NVRM") == ()


def test_this_hosts_own_log_is_text_or_nothing():
    assert all("x" in line for line in HostKernelLog().lines("x"))

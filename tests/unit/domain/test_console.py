# SPDX-License-Identifier: Apache-2.0
"""Screens and consoles as a domain's XML names them."""

from __future__ import annotations

import pytest

from vgpuctl.domain.console import ConsoleDevices, GraphicsDevice, parse_consoles


def devices(inner: str) -> str:
    return f"<domain><devices>{inner}</devices></domain>"


@pytest.mark.parametrize(
    ("xml", "screen"),
    [
        (
            "<graphics type='vnc' port='5901' autoport='yes' listen='0.0.0.0'>"
            "<listen type='address' address='0.0.0.0'/></graphics>",
            GraphicsDevice("vnc", 5901, None, "0.0.0.0"),
        ),
        (
            "<graphics type='spice' port='5902' tlsPort='5903'><listen type='network' network='n' address='10.0.0.1'/>"
            "</graphics>",
            GraphicsDevice("spice", 5902, 5903, "10.0.0.1"),
        ),
        ("<graphics type='vnc' port='-1' autoport='yes'/>", GraphicsDevice("vnc")),
        (
            "<graphics type='vnc'><listen type='socket' socket='/run/vnc.sock'/></graphics>",
            GraphicsDevice("vnc", socket="/run/vnc.sock"),
        ),
        ("<graphics type='spice'><listen type='none'/></graphics>", GraphicsDevice("spice")),
        ("<graphics type='vnc' port='5900' listen='::1'/>", GraphicsDevice("vnc", 5900, None, "::1")),
    ],
)
def test_a_screen_is_read_as_it_is_written(xml: str, screen: GraphicsDevice):
    assert parse_consoles(devices(xml)).graphics == (screen,)


def test_only_a_console_on_a_terminal_can_be_opened():
    result = parse_consoles(
        devices(
            "<console type='pty' tty='/dev/pts/3'><target type='serial' port='0'/></console>"
            "<console type='pty'><source path='/dev/pts/4'/><target type='virtio' port='1'/></console>"
            "<console type='tcp'><target type='virtio' port='2'/></console>"
        )
    )
    assert result.serial_consoles == (("serial", "/dev/pts/3"), ("virtio", "/dev/pts/4"))


def test_a_domain_without_devices_has_none():
    assert parse_consoles("<domain/>") == ConsoleDevices()

# SPDX-License-Identifier: Apache-2.0
"""The screen of a simulated guest: a small server of the RFB protocol 3.8 (RFC 6143) that shows one colour."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket, socketpair
from threading import Thread

WIDTH, HEIGHT = 320, 200
COLOUR = bytes((0x40, 0x80, 0x20, 0))
"""Of each pixel: blue, green, red, and a byte that means nothing."""
BANNER = b"RFB 003.008\n"
_NAME = b"simulated guest"
_PIXEL_FORMAT = struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
_SIZES = {0: 19, 2: 3, 3: 9, 4: 7, 5: 5, 6: 7}
"""Bytes after the type of a client's message, by type: SetPixelFormat, SetEncodings, FramebufferUpdateRequest,
KeyEvent, PointerEvent, ClientCutText; the second and the last are longer."""
_LOOK_SECONDS = 0.2


def show_screen(runs: Callable[[], bool]) -> socket:
    """Return a connection to a screen, which ends when the guest does not run any more."""
    ours, theirs = socketpair()
    Thread(target=_serve, args=(ours,), name="sim-screen", daemon=True).start()
    Thread(target=_end_with_guest, args=(ours, runs), name="sim-screen-end", daemon=True).start()
    return theirs


def _end_with_guest(connection: socket, runs: Callable[[], bool]) -> None:
    from threading import Event

    never = Event()
    while connection.fileno() >= 0 and runs():
        never.wait(_LOOK_SECONDS)
    with suppress(OSError):
        connection.shutdown(SHUT_RDWR)


def _serve(connection: socket) -> None:
    with connection, suppress(OSError):
        connection.sendall(BANNER)
        _read(connection, len(BANNER))
        connection.sendall(b"\x01\x01")  # one way to sign in: none
        _read(connection, 1)
        connection.sendall(b"\0\0\0\0")
        _read(connection, 1)
        size = struct.pack(">HH", WIDTH, HEIGHT)
        connection.sendall(size + _PIXEL_FORMAT + struct.pack(">I", len(_NAME)) + _NAME)
        while True:
            kind = _read(connection, 1)[0]
            body = _read(connection, _SIZES[kind]) if kind in _SIZES else b""
            if kind == 2:
                _read(connection, 4 * struct.unpack(">xH", body)[0])
            elif kind == 6:
                _read(connection, struct.unpack(">3xI", body)[0])
            elif kind == 3 and not body[0]:  # the whole screen: it never changes afterwards
                connection.sendall(struct.pack(">BxHHHHHi", 0, 1, 0, 0, WIDTH, HEIGHT, 0) + COLOUR * WIDTH * HEIGHT)
            elif kind not in _SIZES:
                return


def _read(connection: socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data

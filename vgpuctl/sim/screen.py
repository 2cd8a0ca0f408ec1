# SPDX-License-Identifier: Apache-2.0
"""The screen of a simulated guest: a small server of the RFB protocol 3.8 (RFC 6143).

It shows one colour, and another one while a key is down.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from socket import SHUT_RDWR, socket, socketpair
from threading import Thread

WIDTH, HEIGHT = 320, 200
COLOUR, KEY_COLOUR = bytes((0x40, 0x80, 0x20, 0)), bytes((0x20, 0x40, 0x80, 0))
"""Of each pixel, until a client asks for another order: blue, green, red, and a byte that means nothing."""
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
        _show(connection)


def _show(connection: socket) -> None:
    """Answer a client that has signed in, until it sends what is no message."""
    colour, shown, is_waiting, shifts = COLOUR, b"", False, [16, 8, 0]
    while (kind := _read(connection, 1)[0]) in _SIZES:
        body = _read(connection, _SIZES[kind])
        if kind == 0:
            bits, _, is_big, _, _, _, _, *shifts = struct.unpack(">3xBBBBHHHBBB3x", body)
            if (bits, is_big) != (32, 0):
                return
        elif kind == 2:
            _read(connection, 4 * struct.unpack(">xH", body)[0])
        elif kind == 6:
            _read(connection, struct.unpack(">3xI", body)[0])
        elif kind == 4:
            colour = KEY_COLOUR if body[0] else COLOUR
        elif kind == 3:
            is_waiting, shown = True, shown if body[0] else b""  # the whole screen, or what has changed
        if is_waiting and shown != colour:
            head = struct.pack(">BxHHHHHi", 0, 1, 0, 0, WIDTH, HEIGHT, 0)
            connection.sendall(head + _pixel(colour, shifts) * WIDTH * HEIGHT)
            is_waiting, shown = False, colour


def _pixel(colour: bytes, shifts: Sequence[int]) -> bytes:
    """Return the four bytes of a pixel; `shifts`: how many bits below red, green and blue are in them."""
    red, green, blue = shifts
    return sum(value << shift for value, shift in zip(colour, (blue, green, red), strict=False)).to_bytes(4, "little")


def _read(connection: socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data

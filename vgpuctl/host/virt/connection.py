# SPDX-License-Identifier: Apache-2.0
"""The connection to libvirt: the one module that imports it, and the one that explains its errors.

Errors are told apart by number, never by text. While this process holds the host lock no call is made:
libvirt runs hooks under a domain's lock, and a hook may be waiting for ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Event, Thread, local
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import HostCannot, InvalidInput, LibvirtFailed, VgpuctlError, missing_library
from vgpuctl.host.virt import numbers
from vgpuctl.model.records import HypervisorStatus

if TYPE_CHECKING:
    from libvirt import libvirtError as libvirtError
    from libvirt import virConnect as virConnect
    from libvirt import virDomain as virDomain
    from libvirt import virStoragePool as virStoragePool
    from libvirt import virStorageVol as virStorageVol

_T = TypeVar("_T")

SYSTEM = "qemu:///system"
_LOCAL = ("qemu", "qemu+unix", "test")
_START = "start it: systemctl start libvirtd (or virtqemud.socket, with modular daemons)"
_SERVED_SECONDS = 5.0
_RIGHTS = "run it as root, or add your user to the group libvirt"


def checked_uri(uri: str) -> str:
    """Return a URI of this host's libvirt.

    Raises:
        InvalidInput: it names another host or another driver.
    """
    scheme, separator, rest = uri.partition("://")
    if scheme in _LOCAL and separator and rest.startswith("/"):
        return uri
    raise InvalidInput(
        f"'{uri}' is not a libvirt connection on this host",
        hint="use qemu:///system; GPUs are made on the host itself, so vgpuctl runs there",
        value=uri,
    )


class Connection:
    """One connection, opened at the first call and again after it broke."""

    def __init__(self, uri: str | None, lock_held: Callable[[], bool]) -> None:
        self.uri = checked_uri(uri or SYSTEM)
        self._lock_held = lock_held
        self._open: virConnect | None = None

    @contextmanager
    def calling(self, call: str, failure: str, **facts: object) -> Iterator[virConnect]:
        """Give out the connection, and turn libvirt's errors into ours.

        `failure` is what the message begins with ("cannot start VM x"), `call` libvirt's own name of the call.
        """
        import libvirt

        connect = self._connected()
        _heard.error = None
        try:
            yield connect
        except libvirt.libvirtError as error:
            raise self._explained(_whole(error), connect, call, failure, facts) from error

    @contextmanager
    def listening(self, call: str, failure: str, **facts: object) -> Iterator[virConnect]:
        """Give out a connection of its own on which libvirt's events are heard, in a thread, until the block ends.

        libvirt wants its loop of events registered before the connection is opened that is to hear them; one that was
        opened without does not change. The thread keeps signals away from the callbacks: they reach the main thread.
        """
        import libvirt

        if self._lock_held():
            raise AssertionError("a libvirt call under the host lock")
        _register_events()
        connect = self._opened()
        over = Event()
        timer = libvirt.virEventAddTimeout(-1, _quiet, None)
        thread = Thread(target=_serve, args=(over,), name="libvirt-events", daemon=True)
        thread.start()
        try:
            yield connect
        except libvirt.libvirtError as error:
            raise self._explained(_whole(error), connect, call, failure, facts) from error
        finally:
            over.set()
            libvirt.virEventUpdateTimeout(timer, 0)  # wakes the loop
            thread.join(_SERVED_SECONDS)
            libvirt.virEventRemoveTimeout(timer)
            with suppress(libvirt.libvirtError):
                connect.close()

    def status(self) -> HypervisorStatus:
        """Say whether libvirt answers."""
        try:
            with self.calling("virConnectGetVersion", "cannot ask libvirt for its version") as connect:
                return HypervisorStatus(
                    available=True,
                    uri=self.uri,
                    libvirt_version=connect.getLibVersion(),
                    qemu_version=connect.getVersion() if self.uri.startswith("qemu") else None,
                )
        except VgpuctlError as error:
            return HypervisorStatus(available=False, uri=self.uri, reason=str(error), hint=error.hint)
        except ImportError as error:
            lacks = missing_library(error) or error
            return HypervisorStatus(available=False, uri=self.uri, reason=str(lacks), hint=getattr(lacks, "hint", None))

    def sought(self, missing: int, look: Callable[[], _T]) -> _T | None:
        """Return what a look-up finds, or None for the error number that means "there is none"."""
        import libvirt

        try:
            return look()
        except libvirt.libvirtError as error:
            if _whole(error).get_error_code() == missing:
                return None
            raise

    def tried(self, allowed: frozenset[int] | None, do: Callable[[], object]) -> int | None:
        """Make a call; return None when it succeeded, or its error number when that is allowed (None: any)."""
        import libvirt

        _heard.error = None
        try:
            do()
        except libvirt.libvirtError as error:
            code = _whole(error).get_error_code()
            if allowed is None or code in allowed:
                return code
            raise
        return None

    def flags(self, *names: str) -> int:
        """Return the sum of the flags that the installed binding knows: it depends on its libvirt."""
        import libvirt

        return sum(int(getattr(libvirt, name, 0)) for name in names)

    def _connected(self) -> virConnect:
        if self._lock_held():
            raise AssertionError("a libvirt call under the host lock")
        if self._open is None:
            self._open = self._opened()
        return self._open

    def _opened(self) -> virConnect:
        import libvirt

        libvirt.registerErrorHandler(_hear, None)  # the library prints every error itself otherwise
        try:
            return libvirt.open(self.uri)
        except libvirt.libvirtError as error:
            if os.geteuid() != 0:
                try:
                    return libvirt.openReadOnly(self.uri)  # enough to look, and open to everyone
                except libvirt.libvirtError:
                    pass
            code = error.get_error_code()
            raise HostCannot(
                f"libvirt does not answer at {self.uri}: {error.get_error_message()}",
                hint=_RIGHTS if code in numbers.NOT_ALLOWED else _START,
                check="libvirt",
                libvirt_code=code,
                uri=self.uri,
            ) from error

    def _explained(
        self, error: libvirtError, connect: virConnect, call: str, failure: str, facts: dict[str, object]
    ) -> VgpuctlError:
        code, text = error.get_error_code(), error.get_error_message() or "libvirt gave no reason"
        seen: dict[str, object] = {**facts, "libvirt_code": code, "call": call}
        if code in numbers.NOT_ALLOWED:
            return HostCannot(f"{failure}: {text}", hint=_RIGHTS, check="libvirt", **seen)
        if _broken(code, connect):
            self._open = None
            return HostCannot(
                f"{failure}: the connection to libvirt broke: {text}", hint=_START, check="libvirt", **seen
            )
        return LibvirtFailed(
            f"{failure}: {text}",
            hint=numbers.HINTS.get(code),
            libvirt_domain=error.get_error_domain(),
            **seen,
        )


def code_of(error: VgpuctlError) -> int | None:
    """Return libvirt's error number that an error of ours was made from."""
    code = error.facts.get("libvirt_code")
    return code if isinstance(code, int) else None


def _broken(code: int, connect: virConnect) -> bool:
    """Say whether the connection itself is gone; then even a plain call ends with an internal error."""
    import libvirt

    if code in (numbers.VIR_ERR_RPC, numbers.VIR_ERR_INVALID_CONN):
        return True
    try:
        return connect.isAlive() != 1
    except libvirt.libvirtError:
        return True


@cache
def _register_events() -> None:
    """Have libvirt's own loop of events, once in a process."""
    import libvirt

    libvirt.virEventRegisterDefaultImpl()


def _serve(over: Event) -> None:
    """Run the loop of events until it is over."""
    import libvirt

    while not over.is_set():
        libvirt.virEventRunDefaultImpl()


_heard = local()
"""The last error that libvirt told in this thread, as the numbers and texts that libvirtError keeps."""


def _hear(_context: object, error: object) -> None:
    """Keep an error that is also raised."""
    _heard.error = error


def _whole(error: libvirtError) -> libvirtError:
    """Return the error with its number.

    libvirtError asks for the last error of its thread only when it is made. If the garbage collector frees a domain
    between the call and that, the bindings have called virDomainFree, which resets the last error.
    """
    if error.err is None:
        error.err = getattr(_heard, "error", None)
    return error


def _quiet(*_: object) -> None:
    """Do nothing: a timer that only wakes."""

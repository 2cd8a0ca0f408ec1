# SPDX-License-Identifier: Apache-2.0
"""The connection to libvirt: the only module that imports libvirt and translates its errors.

Errors are distinguished by number, never by text. This process makes no call while it holds the host lock: libvirt runs
hooks under a domain's lock, and a hook may be waiting for the host lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Event, Lock, Thread, local
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import HostCannot, InvalidInput, LibvirtFailed, VgpuctlError, missing_library_error
from vgpuctl.host.virt import constants
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.symptoms import find_hint

if TYPE_CHECKING:
    from libvirt import libvirtError as libvirtError
    from libvirt import virConnect as virConnect
    from libvirt import virDomain as virDomain
    from libvirt import virNetwork as virNetwork
    from libvirt import virStoragePool as virStoragePool
    from libvirt import virStorageVol as virStorageVol
    from libvirt import virStream as virStream

_T = TypeVar("_T")

SYSTEM_URI = "qemu:///system"
_LOCAL_SCHEMES = ("qemu", "qemu+unix", "test")
_START_HINT = "systemctl start libvirtd (or virtqemud.socket, with modular daemons)"
_PAUSE_AFTER_ERROR_SECONDS = 0.5
_CALLBACK_SECONDS = 5.0
KEEPALIVE_SECONDS, KEEPALIVE_COUNT = 5, 6
"""A daemon that has not answered for 35 seconds counts as dead: one that sends much memory may be slow."""
_NO_KEEPALIVE = frozenset({constants.VIR_ERR_NO_SUPPORT, constants.VIR_ERR_INTERNAL_ERROR})
_PERMISSION_HINT = "run it as root, or add your user to the group libvirt"


def require_local_uri(uri: str) -> str:
    """Return the URI if it names this host's libvirt.

    Raises:
        InvalidInput: the URI names another host or another driver.
    """
    scheme, separator, rest = uri.partition("://")
    if scheme in _LOCAL_SCHEMES and separator and rest.startswith("/"):
        return uri
    raise InvalidInput(
        f"'{uri}' is not a libvirt connection on this host",
        hint="use qemu:///system; vgpuctl runs on the host that has the GPUs",
        value=uri,
    )


class LibvirtConnection:
    """One connection, opened at the first call and again after it broke. Threads share it."""

    def __init__(self, uri: str | None, lock_held: Callable[[], bool]) -> None:
        self.uri = require_local_uri(uri or SYSTEM_URI)
        self._lock_held = lock_held
        self._connect: virConnect | None = None
        self._opening = Lock()

    def close(self) -> None:
        """Close the connection, if one is open."""
        import libvirt

        with self._opening:
            connect, self._connect = self._connect, None
        if connect is not None:
            with suppress(libvirt.libvirtError):
                connect.close()

    @contextmanager
    def call(self, function: str, failure: str, **facts: object) -> Iterator[virConnect]:
        """Yield the connection, and translate libvirt's errors into vgpuctl's.

        `failure`: the beginning of the message ("cannot start VM x"); `function`: libvirt's name of the call.
        """
        import libvirt

        connect = self._get_connection()
        _last_error.error = None
        try:
            yield connect
        except libvirt.libvirtError as error:
            raise self._translate_error(_restore_error_number(error), connect, function, failure, facts) from error

    @contextmanager
    def listen(self, function: str, failure: str, **facts: object) -> Iterator[virConnect]:
        """Yield a separate connection whose events arrive in the event loop's thread, until the block ends.

        libvirt requires its event loop to be registered before the connection is opened; a connection that was opened
        earlier never receives events.
        """
        import libvirt

        if self._lock_held():
            raise AssertionError("a libvirt call under the host lock")
        with _starting_event_loop:
            _start_event_loop()
        connect = self._open_connection()
        _wait_for_callbacks()  # a driver in this process still has to dispatch what happened before
        try:
            yield connect
        except libvirt.libvirtError as error:
            raise self._translate_error(_restore_error_number(error), connect, function, failure, facts) from error
        finally:
            _wait_for_callbacks()
            with suppress(libvirt.libvirtError):
                connect.close()

    @contextmanager
    def open_other(self, uri: str) -> Iterator[virConnect]:
        """Yield a connection to another host's libvirt; use it inside a `call`, which translates its errors.

        Calls fail when that libvirt does not answer any more, also where the network is lost without a word.
        """
        import libvirt

        with _starting_event_loop:
            _start_event_loop()  # libvirt's keepalive runs in it
        connect = libvirt.open(uri)
        try:
            self.keep_alive(connect)
            yield connect
        finally:
            with suppress(libvirt.libvirtError):
                connect.close()

    def status(self) -> HypervisorStatus:
        """Return whether libvirt answers."""
        try:
            with self.call("virConnectGetVersion", "cannot read libvirt's version") as connect:
                return HypervisorStatus(
                    available=True,
                    uri=self.uri,
                    libvirt_version=connect.getLibVersion(),
                    qemu_version=connect.getVersion() if self.uri.startswith("qemu") else None,
                )
        except VgpuctlError as error:
            return HypervisorStatus(available=False, uri=self.uri, reason=str(error), hint=error.hint)
        except ImportError as error:
            library_error = missing_library_error(error) or error
            return HypervisorStatus(
                available=False, uri=self.uri, reason=str(library_error), hint=getattr(library_error, "hint", None)
            )

    def look_up(self, missing: int, look: Callable[[], _T]) -> _T | None:
        """Return the result of a lookup, or None for the error number that means "there is none"."""
        import libvirt

        try:
            return look()
        except libvirt.libvirtError as error:
            if _restore_error_number(error).get_error_code() == missing:
                return None
            raise

    def keep_alive(self, connect: virConnect) -> None:
        """Have a connection end when its daemon does not answer; libvirt's test driver has no such thing."""
        self.attempt(_NO_KEEPALIVE, lambda: connect.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT))

    def attempt(self, allowed: frozenset[int] | None, do: Callable[[], object]) -> int | None:
        """Make a call; return None when it succeeds, or its error number if that is allowed (`allowed` None: any)."""
        import libvirt

        _last_error.error = None
        try:
            do()
        except libvirt.libvirtError as error:
            code = _restore_error_number(error).get_error_code()
            if allowed is None or code in allowed:
                return code
            raise
        return None

    def combine_flags(self, *names: str) -> int:
        """Return the sum of those flags that the installed binding has; this depends on its libvirt version."""
        import libvirt

        return sum(int(getattr(libvirt, name, 0)) for name in names)

    def _get_connection(self) -> virConnect:
        if self._lock_held():
            raise AssertionError("a libvirt call under the host lock")
        with self._opening:
            if self._connect is None or _is_dead(self._connect):
                self._connect = self._open_connection()
            return self._connect

    def _open_connection(self) -> virConnect:
        import libvirt

        libvirt.registerErrorHandler(_save_last_error, None)  # otherwise the library prints every error itself
        try:
            return libvirt.open(self.uri)
        except libvirt.libvirtError as error:
            if os.geteuid() != 0:
                try:
                    return libvirt.openReadOnly(self.uri)  # enough to read, and allowed for everyone
                except libvirt.libvirtError:
                    pass
            code = error.get_error_code()
            raise HostCannot(
                f"libvirt does not answer at {self.uri}: {error.get_error_message()}",
                hint=_PERMISSION_HINT if code in constants.PERMISSION_ERRORS else _START_HINT,
                check="libvirt",
                libvirt_code=code,
                uri=self.uri,
            ) from error

    def _translate_error(
        self, error: libvirtError, connect: virConnect, call: str, failure: str, facts: dict[str, object]
    ) -> VgpuctlError:
        code, text = error.get_error_code(), error.get_error_message() or "libvirt gave no reason"
        all_facts: dict[str, object] = {**facts, "libvirt_code": code, "call": call}
        if code in constants.PERMISSION_ERRORS:
            return HostCannot(f"{failure}: {text}", hint=_PERMISSION_HINT, check="libvirt", **all_facts)
        if _is_broken(code, connect):
            self._connect = None
            return HostCannot(
                f"{failure}: the connection to libvirt broke: {text}", hint=_START_HINT, check="libvirt", **all_facts
            )
        return LibvirtFailed(
            f"{failure}: {text}",
            hint=find_hint(text) or constants.ERROR_HINTS.get(code),
            libvirt_domain=error.get_error_domain(),
            **all_facts,
        )


def libvirt_code_of(error: VgpuctlError) -> int | None:
    """Return the libvirt error number in one of vgpuctl's errors, or None."""
    code = error.facts.get("libvirt_code")
    return code if isinstance(code, int) else None


def _is_broken(code: int, connect: virConnect) -> bool:
    """Return whether the connection itself is broken; then even a plain call ends with an internal error."""
    return code in (constants.VIR_ERR_RPC, constants.VIR_ERR_INVALID_CONN) or _is_dead(connect)


def _is_dead(connect: virConnect) -> bool:
    """Return whether the connection is closed, as far as this process knows: it asks nobody."""
    import libvirt

    try:
        return connect.isAlive() != 1
    except libvirt.libvirtError:
        return True


_starting_event_loop = Lock()


@cache
def _start_event_loop() -> None:
    """Run libvirt's own event loop in a thread, once in a process: all operations of the process share it.

    The thread keeps signals away from the callbacks: they reach the main thread.
    """
    import libvirt

    libvirt.virEventRegisterDefaultImpl()
    Thread(target=_run_event_loop, name="libvirt-events", daemon=True).start()


def _run_event_loop() -> None:
    """Run the event loop until the process ends; an error of one turn does not end it."""
    import libvirt

    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            time.sleep(_PAUSE_AFTER_ERROR_SECONDS)


def event_loop_answers(deadline_seconds: float) -> bool:
    """Return whether the event loop, which must have been started, runs a timer before the deadline."""
    import libvirt

    passed = Event()
    timer = libvirt.virEventAddTimeout(0, lambda *_: passed.set(), None)
    is_passed = passed.wait(deadline_seconds)
    libvirt.virEventRemoveTimeout(timer)
    return is_passed


def _wait_for_callbacks() -> None:
    """Wait until the event loop has left the callbacks in which it is; an event that is under way counts to its block.

    The loop runs in one thread, so it is in no callback any more when it runs this timer's.
    """
    event_loop_answers(_CALLBACK_SECONDS)


_last_error = local()
"""The last error that libvirt reported in this thread, as the numbers and texts that libvirtError keeps."""


def _save_last_error(_context: object, error: object) -> None:
    """Save an error that is also raised."""
    _last_error.error = error


def _restore_error_number(error: libvirtError) -> libvirtError:
    """Return the error with its number.

    libvirtError reads its thread's last error only when it is constructed. If the garbage collector frees a domain
    between the call and the construction, the bindings call virDomainFree, which resets the last error.
    """
    if error.err is None:
        error.err = getattr(_last_error, "error", None)
    return error

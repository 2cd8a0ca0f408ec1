# SPDX-License-Identifier: Apache-2.0
"""Calls NVML's functions through pynvml; no other module imports pynvml.

Every function may be missing from the loaded library or from an older pynvml. Each is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from threading import Condition
from typing import Any

from vgpuctl.errors import Busy, NvmlFailed, missing_library_error

REQUIRED_FUNCTIONS = (
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHostVgpuMode",
    "nvmlDeviceGetSupportedVgpus",
    "nvmlVgpuTypeGetName",
    "nvmlVgpuTypeGetFramebufferSize",
    "nvmlVgpuTypeGetMaxInstances",
)
"""The functions that libnvidia-ml must have, by its own names."""

INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3
CHANGE_WAIT_SECONDS = 60.0
"""How long a change waits for other threads of this process that ask NVML; a query takes milliseconds."""
_LIBRARY = "libnvidia-ml.so.1"
_VERSIONED_NAMES = {
    "nvmlDeviceGetHandleByPciBusId": "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetGpuInstancePossiblePlacements": "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetNvLinkRemotePciInfo": "nvmlDeviceGetNvLinkRemotePciInfo_v2",
}
"""pynvml's functions that call a library function of another name."""


class NvmlLibrary:
    """NVML while it is open. `operation`: what an error says that NVML does not do. `function_cache` outlives this."""

    def __init__(self, nvml: Any, function_cache: dict[str, bool], operation: str) -> None:
        self.nvml = nvml
        self._known = function_cache
        self._doing = operation

    def has(self, name: str) -> bool:
        """Return whether both the library and pynvml have a function."""
        if name not in self._known:
            library_name = _VERSIONED_NAMES.get(name, name)
            self._known[name] = hasattr(self.nvml, name) and has_function(self.nvml, library_name)
        return self._known[name]

    def query(self, name: str, *args: Any) -> Any:
        """Return a function's result; None where it is missing or NVML returns an error."""
        if not self.has(name):
            return None
        try:
            return getattr(self.nvml, name)(*args)
        except self.nvml.NVMLError:
            return None

    def call(self, name: str, *args: Any) -> Any:
        """Return a function's result.

        Raises:
            NvmlFailed: NVML returned an error, or lacks the function.
        """
        if not self.has(name):
            raise self.make_error("this driver's NVML does not have that function", name, None)
        try:
            return getattr(self.nvml, name)(*args)
        except self.nvml.NVMLError as error:
            raise self.make_error(str(error), name, int(error.value)) from error

    def call_for_list(self, name: str, item_type: Any, max_count: int, *args: Any) -> list[Any]:
        """Return the items of a function that fills an array and returns their number.

        Raises:
            NvmlFailed: as `call`.
        """
        items, count = (item_type * max_count)(), c_uint(max_count)
        self.call(name, *args, items, byref(count))
        return list(items[: min(count.value, max_count)])

    def make_error(self, reason: str, name: str, code: int | None) -> NvmlFailed:
        """Return the error of a call; the caller raises it."""
        return NvmlFailed(f"NVML does not {self._doing}: {reason}", nvml_code=code, call=name)


def load_pynvml() -> Any:
    """Return pynvml, or raise ImportError; loads its thousands of lines only where the driver's library exists."""
    from ctypes import CDLL

    try:
        CDLL(_LIBRARY)
    except OSError as exc:
        raise ImportError(str(exc)) from exc
    import pynvml

    return pynvml


class _Turns:
    """Several threads of this process look at NVML at once; a change waits for them, and they wait for it.

    The driver refuses to change a GPU's layout while a client has NVML open, also one of the same process.
    """

    def __init__(self) -> None:
        self._turn = Condition()
        self._looking: set[object] = set()
        self._changing: set[object] = set()

    @contextmanager
    def look(self) -> Iterator[None]:
        """Wait for changes that are under way or wait, then let no change begin."""
        token = object()
        try:
            with self._turn:
                self._turn.wait_for(lambda: not self._changing)
                self._looking.add(token)
            yield
        finally:
            self._leave(self._looking, token)

    @contextmanager
    def change(self) -> Iterator[None]:
        """Let nobody begin to look, wait until nobody looks or changes, and let nobody change."""
        token = object()
        try:
            with self._turn:
                self._changing.add(token)
                if not self._turn.wait_for(lambda: not self._looking, CHANGE_WAIT_SECONDS):
                    raise Busy(
                        f"another operation of this process has NVML open for more than {CHANGE_WAIT_SECONDS:g} s",
                        hint="run the command again",
                    )
                yield
        finally:
            self._leave(self._changing, token)

    def _leave(self, group: set[object], token: object) -> None:
        with self._turn:
            group.discard(token)
            self._turn.notify_all()


_turns = _Turns()


@contextmanager
def open_nvml(nvml: Any) -> Iterator[None]:
    """Keep NVML open for one query, at the same time as other threads."""
    with _turns.look(), _opened(nvml):
        yield


@contextmanager
def _opened(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):  # harmless: the end of the process closes it
            nvml.nvmlShutdown()


@contextmanager
def open_for_change(load: Callable[[], Any], function_cache: dict[str, bool], operation: str) -> Iterator[NvmlLibrary]:
    """Keep NVML open for one change, when no other thread of this process has it open.

    Raises:
        NvmlFailed: NVML cannot be opened.
    """
    try:
        nvml = load()
    except ImportError as error:
        library_error = missing_library_error(error)
        hint = library_error.hint if library_error else None
        raise NvmlFailed(
            f"NVML cannot be used: {library_error or error}", hint=hint, nvml_code=None, call="nvmlInit"
        ) from error
    try:
        with _turns.change(), _opened(nvml):
            yield NvmlLibrary(nvml, function_cache, operation)
    except nvml.NVMLError as error:  # from nvmlInit: the other calls wrap theirs
        raise NvmlFailed(f"NVML cannot be used: {error}", nvml_code=int(error.value), call="nvmlInit") from error


def find_missing_function(nvml: Any) -> str | None:
    """Return the first required function that the loaded library lacks."""
    return next((name for name in REQUIRED_FUNCTIONS if not has_function(nvml, name)), None)


def has_function(nvml: Any, name: str) -> bool:
    """Return whether the loaded library has a function."""
    try:
        nvml._nvmlGetFunctionPointer(name)
    except nvml.NVMLError:
        return False
    return True

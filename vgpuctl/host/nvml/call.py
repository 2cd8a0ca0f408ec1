# SPDX-License-Identifier: Apache-2.0
"""NVML's functions, called through pynvml: the one module that imports it.

Every function may be missing from the loaded library, or from an older pynvml. Each is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from typing import Any

from vgpuctl.errors import NvmlFailed, missing_library

NEEDED = (
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHostVgpuMode",
    "nvmlDeviceGetSupportedVgpus",
    "nvmlVgpuTypeGetName",
    "nvmlVgpuTypeGetFramebufferSize",
    "nvmlVgpuTypeGetMaxInstances",
)
"""What libnvidia-ml must offer, in its own names."""

INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3
_LIBRARY = "libnvidia-ml.so.1"
_OWN_NAMES = {
    "nvmlDeviceGetHandleByPciBusId": "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetGpuInstancePossiblePlacements": "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
}
"""pynvml's functions that call one of another name."""


class Library:
    """NVML while it is open. `doing` is what a failure says that it does not do; `known` outlives one opening."""

    def __init__(self, nvml: Any, known: dict[str, bool], doing: str) -> None:
        self.nvml = nvml
        self._known = known
        self._doing = doing

    def has(self, name: str) -> bool:
        """Say whether both the library and pynvml have a function."""
        if name not in self._known:
            own = _OWN_NAMES.get(name, name)
            self._known[name] = hasattr(self.nvml, name) and has_function(self.nvml, own)
        return self._known[name]

    def ask(self, name: str, *args: Any) -> Any:
        """Return what a function says; None where it is missing or NVML refuses to answer."""
        if not self.has(name):
            return None
        try:
            return getattr(self.nvml, name)(*args)
        except self.nvml.NVMLError:
            return None

    def run(self, name: str, *args: Any) -> Any:
        """Return what a function says.

        Raises:
            NvmlFailed: NVML refused it, or does not have it.
        """
        if not self.has(name):
            raise self.failed("this driver's NVML does not have that function", name, None)
        try:
            return getattr(self.nvml, name)(*args)
        except self.nvml.NVMLError as error:
            raise self.failed(str(error), name, int(error.value)) from error

    def several(self, name: str, kind: Any, most: int, *args: Any) -> list[Any]:
        """Return the items of a function that fills an array and tells their number.

        Raises:
            NvmlFailed: as `run`.
        """
        items, count = (kind * most)(), c_uint(most)
        self.run(name, *args, items, byref(count))
        return list(items[: min(count.value, most)])

    def failed(self, why: str, name: str, code: int | None) -> NvmlFailed:
        """Return the error of a call; the caller raises it."""
        return NvmlFailed(f"NVML does not {self._doing}: {why}", nvml_code=code, call=name)


def load_pynvml() -> Any:
    """Return pynvml, or raise ImportError; its thousands of lines are read only where the driver's library is."""
    from ctypes import CDLL

    try:
        CDLL(_LIBRARY)
    except OSError as exc:
        raise ImportError(str(exc)) from exc
    import pynvml

    return pynvml


@contextmanager
def session(nvml: Any) -> Iterator[None]:
    """Have NVML open for one question or change."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):  # nothing is left to do then: the process's end closes it
            nvml.nvmlShutdown()


@contextmanager
def changing(load: Callable[[], Any], known: dict[str, bool], doing: str) -> Iterator[Library]:
    """Have NVML open for one change.

    Raises:
        NvmlFailed: it cannot be opened.
    """
    try:
        nvml = load()
    except ImportError as error:
        lacks = missing_library(error)
        hint = lacks.hint if lacks else None
        raise NvmlFailed(
            f"NVML cannot be asked: {lacks or error}", hint=hint, nvml_code=None, call="nvmlInit"
        ) from error
    try:
        with session(nvml):
            yield Library(nvml, known, doing)
    except nvml.NVMLError as error:  # of nvmlInit: the others are wrapped where they are called
        raise NvmlFailed(f"NVML cannot be asked: {error}", nvml_code=int(error.value), call="nvmlInit") from error


def lacking(nvml: Any) -> str | None:
    """Return the first needed function that the loaded library does not have."""
    return next((name for name in NEEDED if not has_function(nvml, name)), None)


def has_function(nvml: Any, name: str) -> bool:
    """Say whether the loaded library has a function."""
    try:
        nvml._nvmlGetFunctionPointer(name)
    except nvml.NVMLError:
        return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""The images that controllers bring to this host: parts arrive or are fetched, are checked, and get their name.

Until then there is only a hidden file `.NAME.MACHINE.part` beside it, which the next request takes up. The file
`images.json` in the agent's state directory says which images were brought here: no other file is ever deleted.

    copies.begin(request)            # has room; what is there already counts
    copies.append(path, 0, data)     # as long as the controller sends
    copies.list()                    # copying, then ready or failed
    copies.delete(path)
"""

from __future__ import annotations

import hashlib
import logging
import os
import posixpath
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock

from vgpuctl.agent.image_fetch import opened_url
from vgpuctl.agent.image_records import ImageRecord, ImageRecords
from vgpuctl.errors import Busy, FileFailed, NoSpace, NotFound, VgpuctlError, explain_exception
from vgpuctl.host.image_check import check_image, sha256_of
from vgpuctl.model.image_copy import (
    SPARE_BYTES,
    BadImage,
    ChecksumDiffers,
    CopyState,
    ImageCopy,
    ImageRequest,
    NotACopy,
    WrongOffset,
)
from vgpuctl.model.numbers import format_bytes
from vgpuctl.ports.host import Host
from vgpuctl.ports.system import ImageFolders

log = logging.getLogger("vgpuctl.agent")

WORKERS = 2
"""So many images are fetched or checked at a time."""
_FORMATS = ("raw", "qcow2")


class _Work:
    """What fetches or checks an image. `error`: why it failed."""

    def __init__(self) -> None:
        self.cancelled = Event()
        self.is_over = False
        self.error: VgpuctlError | None = None


class ImageCopies:
    """The images of one host; threads share it. `refuse_used`: raises if something on the host needs an image."""

    def __init__(self, host: Host, directory: Path, refuse_used: Callable[[str], None]) -> None:
        self._host = host
        self._records = ImageRecords(directory)
        self._refuse_used = refuse_used
        self._lock = Lock()
        self._work: dict[str, _Work] = {}
        self._checked: dict[str, tuple[ImageRequest, ImageCopy]] = {}
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="image")

    def close(self) -> None:
        """Stop what runs; its part stays, and the next request takes it up."""
        for work in self._work.values():
            work.cancelled.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def list(self) -> tuple[ImageCopy, ...]:
        """Return the images that were asked for since the agent started, and those that were brought here."""
        with self._lock:
            return tuple(self._state(path) for path in sorted({*self._records.by_path, *self._work, *self._checked}))

    def begin(self, request: ImageRequest) -> ImageCopy:
        """Begin to bring an image here, or go on with it, and return how far it is.

        Raises:
            NoSpace: it does not fit, with what is on its way already. StateNotWritable: it cannot be remembered.
            Busy: too many images are known.
        """
        path = request.path
        with self._lock:
            work = self._work.get(path)
            if work is not None and not work.is_over:
                return self._state(path)
            if request.shared or self._is_others(path):
                return self._begin_check(request)
            record = self._records.by_path.get(path)
            if record is not None and record.ready and self._folders.file_bytes(path) == record.bytes:
                return self._state(path)
            sha256 = request.sha256 or ""
            if record is not None and (record.sha256 != sha256 or record.ready):
                self._remove_part(path)
            self._work.pop(path, None)
            self._require_room(path, request.bytes)
            self._records.put(path, ImageRecord(request.bytes, sha256, request.url))
            if request.url is not None:
                self._start(path, lambda work: self._fetch(request, work))
            elif self._have(path) == request.bytes:
                self._start(path, lambda work: self._check_part(path, work))
            return self._state(path)

    def append(self, path: str, offset: int, data: bytes) -> int:
        """Write the next bytes of an image; return how many are there. After the last ones it is checked.

        Raises:
            NotFound: it was not begun. WrongOffset: the host has another number of bytes.
            NoSpace, FileFailed: it cannot be written.
        """
        with self._lock:
            record = self._records.by_path.get(path)
            if record is not None and record.ready and record.bytes is not None:
                return record.bytes  # its part got the image's name while the sender was told how far that was
            if record is None or record.url is not None or record.bytes is None:
                raise NotFound(f"no image is on its way to {path}", hint="begin it: POST /v1/images", path=path)
            work = self._work.get(path)
            have = self._have(path)
            if have != offset or have + len(data) > record.bytes or (work is not None and not work.is_over):
                raise WrongOffset(
                    f"{path}: the host has {have} of {record.bytes} bytes, and {len(data)} from {offset} on were sent",
                    hint="go on where the host's copy ends",
                    have=have,
                    bytes=record.bytes,
                )
            self._write(path, data)
            if have + len(data) == record.bytes:
                self._start(path, lambda work: self._check_part(path, work))
            return have + len(data)

    def delete(self, path: str) -> bool:
        """Delete an image that was brought here, also a part of it; return whether there was one.

        Raises:
            NotACopy: nobody brought it here. InUse, Refused: a disk needs it, or that is not known.
            Busy: it is being fetched or checked; that ends now.
        """
        with self._lock:
            self._checked.pop(path, None)
            record, work = self._records.by_path.get(path), self._work.get(path)
            if record is None:
                if self._folders.file_bytes(path) is None:
                    return False
                raise NotACopy(
                    f"{path} was not brought to this host by a controller, so it stays",
                    hint="root deletes it where nothing needs it: vgpuctl list-images shows that",
                    path=path,
                )
            if work is not None and not work.is_over:
                work.cancelled.set()
                raise Busy(f"{path} is being fetched or checked, which ends now", hint="try again")
        if record.ready:
            self._refuse_used(path)
            self._folders.remove(path)
        with self._lock:
            self._remove_part(path)
            self._work.pop(path, None)
            self._records.forget(path)
        return True

    # What runs in threads

    def _start(self, path: str, act: Callable[[_Work], None]) -> None:
        work = self._work[path] = _Work()

        def run() -> None:
            try:
                act(work)
            except InterruptedError:
                log.info("the work on %s ended early", path)
            except Exception as exc:
                error = explain_exception(exc)
                if not isinstance(error, VgpuctlError):
                    log.exception("the work on %s failed with a bug", path, exc_info=exc)
                    error = VgpuctlError(f"unexpected {type(exc).__name__}: {exc}")
                log.error("%s: %s", path, error.message)
                work.error = error
            finally:
                work.is_over = True

        self._threads.submit(run)

    def _fetch(self, request: ImageRequest, work: _Work) -> None:
        """Fetch an image from its server; a part of before is not used."""
        path, digest = request.path, hashlib.sha256()
        assert request.url is not None
        self._remove_part(path)
        try:
            with opened_url(request.url, request.bytes) as (length, parts):
                with self._lock:
                    self._require_room(path, length)
                    self._records.put(path, ImageRecord(length, request.sha256 or "", request.url))
                for data in parts:
                    if work.cancelled.is_set():
                        raise InterruptedError
                    self._write(path, data)
                    digest.update(data)
            self._publish(path, digest.hexdigest())
        except Exception:
            self._remove_part(path)
            raise

    def _check_part(self, path: str, work: _Work) -> None:
        """Check an image that arrived whole, and give it its name."""
        digest, _ = sha256_of(self._part(path), work.cancelled.is_set)
        try:
            self._publish(path, digest)
        except (ChecksumDiffers, BadImage):
            self._remove_part(path)
            raise

    def _publish(self, path: str, digest: str) -> None:
        record = self._records.by_path[path]
        _require_checksum(path, digest, record.sha256)
        header = check_image(self._part(path), path)
        try:
            self._folders.publish(self._part(path), path, header.format, header.size_bytes)
        except FileExistsError:  # another host with the same storage was faster
            with self._lock:
                self._remove_part(path)
                self._records.forget(path)
            self._check_file(ImageRequest(path, record.bytes, record.sha256, shared=True), _Work())
            return
        with self._lock:
            self._records.put(path, ImageRecord(record.bytes, record.sha256, record.url, ready=True))

    def _begin_check(self, request: ImageRequest) -> ImageCopy:
        """Check a file that nobody copies: at once, but for its SHA-256."""
        path = request.path
        before = self._checked.get(path)
        is_known = before is not None and before[0] == request and before[1].state is CopyState.READY
        if before is not None and is_known and self._folders.file_bytes(path) == before[1].have:
            return before[1]
        if request.sha256 is None:
            try:
                self._check_file(request, _Work())
            except (VgpuctlError, OSError) as exc:
                self._checked[path] = (request, _failed(ImageCopy(path, CopyState.FAILED), explain_exception(exc)))
            return self._checked[path][1]
        self._checked.pop(path, None)
        self._start(path, lambda work: self._check_file(request, work))
        return self._state(path)

    def _check_file(self, request: ImageRequest, work: _Work) -> None:
        """Check an image that is on the host, or on storage that hosts share."""
        path = request.path
        info, size = self._host.storage.image(path), self._folders.file_bytes(path)
        if info is None or size is None:
            raise NotFound(f"file {path} does not exist on this host", hint=f"ls -l {path}", path=path)
        problem = info.access_problem or info.unsafe_reason
        if problem is not None or info.format not in _FORMATS:
            raise BadImage(f"{path}: {problem or f'it is {info.format}, and images are qcow2 or raw'}", path=path)
        if request.bytes not in (None, size):
            raise ChecksumDiffers(f"{path} has {size} bytes, and {request.bytes} are expected", bytes=size)
        if request.sha256 is not None:
            _require_checksum(path, sha256_of(self._folders.local_path(path), work.cancelled.is_set)[0], request.sha256)
        self._checked[path] = (request, ImageCopy(path, CopyState.READY, size, size))

    # Files

    @property
    def _folders(self) -> ImageFolders:
        assert self._host.image_folders is not None
        return self._host.image_folders

    def _part(self, path: str) -> str:
        folder, name = posixpath.split(path)
        return self._folders.local_path(f"{folder}/.{name}.{self._host.machine_id[:8]}.part")

    def _have(self, path: str) -> int:
        with suppress(FileNotFoundError):
            return os.lstat(self._part(path)).st_size
        return 0

    def _write(self, path: str, data: bytes) -> None:
        """Add bytes to a part. A full disk would stop VMs, so the part goes then."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(self._part(path), flags, 0o600), "wb", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) or 0 :]
        except OSError as error:
            self._remove_part(path)
            kind = NoSpace if error.errno in (28, 122) else FileFailed  # ENOSPC, EDQUOT
            raise kind(
                f"{path} cannot be written: {error.strerror}",
                hint=f"df -h {posixpath.dirname(path)}",
                path=path,
                errno=error.errno,
            ) from error

    def _remove_part(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._part(path))

    def _is_others(self, path: str) -> bool:
        """Return whether a file that no controller brought here is in the place of an image."""
        return path not in self._records.by_path and self._folders.file_bytes(path) is not None

    def _require_room(self, path: str, size: int | None) -> None:
        """Refuse an image that does not fit beside those that are on their way."""
        others = sum(
            max(0, record.bytes - self._have(other))
            for other, record in self._records.by_path.items()
            if other != path and not record.ready and record.bytes is not None and self._is_moving(other)
        )
        free, missing = self._folders.free_bytes(posixpath.dirname(path)), (size or 1) - self._have(path)
        if free - others < missing + SPARE_BYTES:
            raise NoSpace(
                f"{path} does not fit: {format_bytes(missing)} are missing, {format_bytes(free)} are free there, of "
                f"which other images will take {format_bytes(others)}, and {format_bytes(SPARE_BYTES)} stay free",
                hint=f"df -h {posixpath.dirname(path)}",
                free_bytes=free,
                on_its_way_bytes=others,
                needed_bytes=missing,
            )

    def _is_moving(self, path: str) -> bool:
        work = self._work.get(path)
        return work is None or work.error is None

    # What is known

    def _state(self, path: str) -> ImageCopy:
        record, work = self._records.by_path.get(path), self._work.get(path)
        if record is None and path in self._checked:
            return self._checked[path][1]
        size = None if record is None else record.bytes
        copy = ImageCopy(path, CopyState.COPYING, size, 0 if record is None else self._have(path))
        if work is not None and work.error is not None:
            return _failed(copy, work.error)
        if record is not None and record.ready:
            is_there = self._folders.file_bytes(path) == record.bytes
            state = CopyState.READY if is_there else CopyState.MISSING
            return ImageCopy(path, state, size, (size or 0) if is_there else 0)
        return copy


def _require_checksum(path: str, digest: str, expected: str) -> None:
    if digest != expected:
        raise ChecksumDiffers(
            f"{path} is not the image that was meant: its SHA-256 is {digest}, not {expected}",
            hint="compare with: sha256sum FILE",
            sha256=digest,
            expected=expected,
        )


def _failed(copy: ImageCopy, error: BaseException) -> ImageCopy:
    known = error if isinstance(error, VgpuctlError) else VgpuctlError(str(error))
    return ImageCopy(copy.path, CopyState.FAILED, copy.bytes, copy.have, known.code, known.message, known.hint)

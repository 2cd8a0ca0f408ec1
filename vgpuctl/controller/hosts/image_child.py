# SPDX-License-Identifier: Apache-2.0
"""Sends one image to one host: a process of its own, with a connection of its own (`python -m`, by `image_sender`).

Its argument is the job as JSON, without any secret. It prints how many bytes the host has, and ends when nobody reads
that any more. Its last line on stderr is the failure, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

from vgpuctl.agent.image_client import ImageClient
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.errors import Unreachable, VgpuctlError, explain_exception
from vgpuctl.model.desktop import Fence
from vgpuctl.model.documents import failure_of, to_json_value
from vgpuctl.model.image_copy import RANGE_BYTES, ChecksumDiffers, CopyState, ImageRequest, WrongOffset
from vgpuctl.model.result_reader import read_value
from vgpuctl.value import Value

MAX_TRIES, RETRY_SECONDS = 5, 3.0
"""So often a connection may break without any progress."""


class SendJob(Value):
    """A file of this machine, and where it goes."""

    host: str
    address: str
    host_key: str | None
    fence: Fence
    file: str
    request: ImageRequest


def send(job: SendJob, client: ImageClient) -> None:
    """Send what the host lacks, until it has all.

    Raises:
        VgpuctlError: the agent's; ChecksumDiffers: the file has another size than the image; OSError: no file.
    """
    descriptor = os.open(job.file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size, tries, last = os.fstat(descriptor).st_size, 0, -1
        if size != job.request.bytes:
            raise ChecksumDiffers(
                f"{job.file} has {size} bytes, and the image has {job.request.bytes}: the file was changed",
                hint="add it again under another name: vgpuctl controller ensure-image NAME --file FILE",
            )
        while True:
            try:
                copy = client.begin(job.request)
                print(copy.have, flush=True)
                if copy.state is not CopyState.COPYING or copy.have == size:
                    return
                tries, last = (0, copy.have) if copy.have > last else (tries + 1, last)
                data = os.pread(descriptor, min(RANGE_BYTES, size - copy.have), copy.have)
                client.send(job.request.path, copy.have, data)
            except (Unreachable, WrongOffset):
                tries += 1
                if tries > MAX_TRIES:
                    raise
                time.sleep(RETRY_SECONDS)
    finally:
        os.close(descriptor)


def main(text: str) -> int:
    """Do a job, and return the exit status."""
    job: SendJob = read_value(SendJob, json.loads(text), "job")
    link = HostLink(job.host, job.address, job.host_key)
    try:
        send(job, link.images(job.fence))
        return 0
    except BrokenPipeError:
        os._exit(1)  # the controller has ended, and flushing stdout would fail again
    except Exception as exc:  # noqa: BLE001 - the controller shows it
        error = explain_exception(exc)
        known = error if isinstance(error, VgpuctlError) else VgpuctlError(f"unexpected {type(exc).__name__}: {exc}")
        print(json.dumps(to_json_value(failure_of(known))), file=sys.stderr)
        return 1
    finally:
        link.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

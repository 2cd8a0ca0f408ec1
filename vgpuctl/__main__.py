# SPDX-License-Identifier: Apache-2.0
"""`python -m vgpuctl` runs the program `vgpuctl`."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the stubs know only `signal`, which takes long to import

if __name__ == "__main__" and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # as in vgpuctl/_program/vgpuctl

import sys

from vgpuctl.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())

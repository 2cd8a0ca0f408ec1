# SPDX-License-Identifier: GPL-3.0-or-later
"""A callback of Ansible that writes each task's result as a line of JSON, for tests."""

from __future__ import annotations

import json
import os

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: results
type: aggregate
short_description: Write each task's result as a line of JSON
description: Into the file that VGPUCTL_RESULTS names.
"""


class CallbackModule(CallbackBase):
    """Output for tests instead of people."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "results"

    def _write(self, result, status):
        line = {"host": result._host.get_name(), "task": result._task.get_name(), "status": status}
        with open(os.environ["VGPUCTL_RESULTS"], "a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "result": result._result}, default=str) + "\n")

    def v2_runner_on_ok(self, result):
        self._write(result, "ok")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._write(result, "failed")

    def v2_runner_on_skipped(self, result):
        self._write(result, "skipped")

    def v2_runner_on_unreachable(self, result):
        self._write(result, "unreachable")

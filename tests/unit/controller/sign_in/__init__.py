# SPDX-License-Identifier: Apache-2.0
"""Tests of `vgpuctl.controller.sign_in`."""

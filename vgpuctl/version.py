# SPDX-License-Identifier: Apache-2.0
"""The version of vgpuctl; a module of its own, because the package itself imports the library."""

__version__ = "0.3.0"

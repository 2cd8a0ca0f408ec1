# SPDX-License-Identifier: Apache-2.0
"""One module a command; each has `command`. The engine is imported when a command runs, never before."""

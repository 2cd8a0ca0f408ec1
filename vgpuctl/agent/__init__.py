# SPDX-License-Identifier: Apache-2.0
"""The host agent: a daemon that serves the library's calls, and what happens on its host, to other programs."""

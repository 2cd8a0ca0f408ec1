# SPDX-License-Identifier: Apache-2.0
"""The host agent: a daemon on each host that offers the library's calls as an API, tells events and heals."""

# SPDX-License-Identifier: Apache-2.0
"""The host agent: a daemon on each host that makes the library's calls for others, and its client.

`server` runs it, `api` says what it answers, `operations` carries out what changes the host; `client` is a host whose
calls an agent makes. Both sides take the calls from `library.call_table`, so no call is declared here.
"""

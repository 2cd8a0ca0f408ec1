# SPDX-License-Identifier: Apache-2.0
"""The ports: small protocols through which the program reaches a host, real or simulated. There is no other way.

`Host` (`ports.host`) bundles the ports of one host; the entry point passes it in. `vgpuctl.host` implements the ports
for the real host, `vgpuctl.sim` for the simulated one. Neither imports the other; contract tests require the same
behaviour of both.

Two rules hold for every implementation:
- A call that changes the host, and every libvirt call, raises AssertionError while this process holds the host lock
  (`Host.claims.is_locked`). Only writing claims is allowed then.
- A call returns what it reads now, never a cached value.

Modules that need a port only as a type import it under TYPE_CHECKING: a Protocol class is slow to create.
"""

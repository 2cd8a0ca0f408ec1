# SPDX-License-Identifier: Apache-2.0
"""Signing in: who somebody is, by an OpenID Connect issuer or an LDAP server.

Nothing here knows the database. Who signed in has no right by that alone: the fleet's entitlements decide.
"""

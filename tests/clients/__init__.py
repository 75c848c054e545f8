"""Clients that were written for other servers, as they are published, against this one.

Run from their own environment, which has no torch: ``make check-clients``. One file a client; a server of the runtime
environment serves them all.
"""

"""Whom programs talk to. `protocol.py` says what a backend is; each other file is one."""

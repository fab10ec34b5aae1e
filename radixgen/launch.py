"""Starts, watches and ends the runtime process."""

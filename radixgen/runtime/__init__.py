"""The runtime process: engine, message loop, statistics."""

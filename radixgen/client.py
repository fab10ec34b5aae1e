"""The frontend of the wire: a socket and the requests that wait on it."""

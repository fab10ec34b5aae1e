"""Which tokens are computed in which step. Knows requests and pages, no tensors, no sockets."""

"""Builds and loads the C kernels. Knows compilers and files, nothing of tensors or models."""

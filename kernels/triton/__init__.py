"""The kernels for GPUs, in Triton. Each file holds an operation; its reference is in the file of
the same name one folder up. Importing this needs triton, so nothing does before a GPU is used."""

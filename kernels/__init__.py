"""Operations on tensors, one file each: a torch reference, C for CPUs, Triton for GPUs.

This file holds a docstring and nothing else: other libraries probe the name `kernels`.
"""

"""Constraints to token masks: regex, JSON Schema and grammars over a vocabulary of bytes.

Knows bytes, automata and token ids. Knows nothing of tensors, requests, pages or sockets.
"""

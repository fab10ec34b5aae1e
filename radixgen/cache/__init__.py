"""KV pages and the radix tree that shares them. Knows token ids and page ids, no tensors."""

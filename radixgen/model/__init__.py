"""The model: files to weights, token ids to logits. The only package that touches the device."""

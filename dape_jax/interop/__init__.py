"""Checkpoints and tensors of other projects."""

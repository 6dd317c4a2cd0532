"""Interoperability with lm-evaluation-harness and GPT-NeoX."""

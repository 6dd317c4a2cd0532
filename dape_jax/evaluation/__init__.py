"""Evaluation of length extrapolation: perplexity, retrieval and accuracy."""

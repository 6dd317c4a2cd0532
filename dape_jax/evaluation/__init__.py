"""How far a language model reads beyond its training length."""

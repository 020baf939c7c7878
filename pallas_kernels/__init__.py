"""Engines: the matrix products of a block-sparse linear layer, arrays in, arrays out."""

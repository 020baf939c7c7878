"""Dynamic block-structured sparsity for MLP-like models in JAX."""

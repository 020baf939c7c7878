"""Finished runs, read back: seeds, labels, costs, and the published numbers."""

"""The GPU benchmark: engines checked, then timed on the device at hand, and what is made of it."""

"""What masking costs on paper: bytes, FLOPs and the time of a step on many devices."""

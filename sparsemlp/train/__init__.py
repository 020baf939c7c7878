"""Training as pure functions: batches, losses, gradients, steps, chunks of an epoch."""

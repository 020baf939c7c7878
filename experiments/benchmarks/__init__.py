"""What `benchmark.py` and `crossover.py` measure on a CPU or any device: speed and memory."""

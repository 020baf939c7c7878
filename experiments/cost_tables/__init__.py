"""Tables of what masking costs on paper and by counters, as `costs.py` writes them."""

"""Several devices and several processes: who is there, what is exchanged, how all end."""

"""GPU kernels one by one: their problems as arrays, checked, timed and cut in other ways."""

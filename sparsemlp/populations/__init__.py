"""Runs that are trained together in one compiled program."""

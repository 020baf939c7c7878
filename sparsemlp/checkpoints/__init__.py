"""Checkpoints that are whole and checked."""

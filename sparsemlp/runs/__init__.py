"""One run: its loop, its folder, and what a person sees of it."""

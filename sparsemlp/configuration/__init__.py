"""Options, what they default to, and the program that they make."""

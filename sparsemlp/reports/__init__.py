"""The page of a study and its tables."""

"""Every combination of a grid file, trained here or on a cluster."""

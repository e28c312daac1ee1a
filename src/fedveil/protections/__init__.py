"""The switch positions: one file each."""

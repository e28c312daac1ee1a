"""Positions of the switch side by side, on the same data from the same start."""

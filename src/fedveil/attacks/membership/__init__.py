"""Telling the examples that a model was trained on from others."""

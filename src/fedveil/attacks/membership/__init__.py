"""Membership inference: deciding if an example was in a model's training data."""

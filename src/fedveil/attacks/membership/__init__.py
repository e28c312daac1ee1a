"""Membership inference: telling a model's training examples from others."""

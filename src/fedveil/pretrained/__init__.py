"""Pretrained language models from a local folder, and their adapters."""

#: A job's `model` with this prefix names such a folder.
PREFIX = "hf:"

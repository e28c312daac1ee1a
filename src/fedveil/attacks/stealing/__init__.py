"""A malicious server sends a model that makes clients' reports contain their examples."""

"""The site that owns the data: what may leave it, and what has left."""

"""Training and evaluation: torch lives here."""

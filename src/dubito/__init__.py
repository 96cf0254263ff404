"""dubito."""

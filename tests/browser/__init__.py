"""Pages, opened in a browser."""

"""Generated requests against a running server."""

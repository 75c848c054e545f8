"""`eyeline encode`: a file of texts in, a file of vectors out, resumable. Begin at ``encode.py``."""

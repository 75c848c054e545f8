"""One module per API family, one short function per endpoint. No logic: that is in ``app/service.py``."""

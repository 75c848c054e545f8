"""Tests of the routes, through HTTP."""

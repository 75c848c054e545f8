"""The wire contracts, one module per API family: what a body may hold, and what an answer holds."""

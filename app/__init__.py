"""HTTP and waiting: from a request's bytes to an answer. Never touches a tensor's insides."""

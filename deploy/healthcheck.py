"""The image's health check: exit code 0 when the server in this container is ready, 1 when it is not.

Docker starts this every few seconds beside a server that wants the processor for itself, so it imports little. It goes
straight to the port, past any http_proxy. A container whose server listens elsewhere, or speaks HTTPS, says so in
EYELINE_PORT and EYELINE_TLS_CERTIFICATE, not with flags, which nobody here can see.
"""

import os
import socket
import sys

TIMEOUT_SECONDS = 2.0


def connect(port: int, *, tls: bool) -> socket.socket:
    """Connect to this machine. Whose name the certificate bears says nothing about being ready."""
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
    if not tls:
        return connection
    import ssl  # takes longer than all the rest

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)


def is_ready(port: int, *, tls: bool) -> bool:
    """Ask /health/ready on this machine; a server that cannot be reached is not ready."""
    try:
        with connect(port, tls=tls) as connection:
            connection.sendall(b"GET /health/ready HTTP/1.0\r\n\r\n")
            status = connection.recv(64).split(b" ", 2)[1:2]
    except OSError as error:
        print(f"port {port}: {error}")
        return False
    print(f"status {b''.join(status).decode('ascii', 'replace')}")
    return status == [b"200"]


if __name__ == "__main__":
    port = int(os.environ.get("EYELINE_PORT") or 8080)
    sys.exit(not is_ready(port, tls=bool(os.environ.get("EYELINE_TLS_CERTIFICATE"))))

"""The real server as a process of its own, in the environment without test tools, spoken to over sockets.

Marked ``e2e``. ``make .venv-runtime/.ready weights`` prepares what they need; ``SERVER_PYTHON`` names another
interpreter for the server, ``TEST_SCALE`` multiplies the load.
"""

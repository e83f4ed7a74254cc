"""The control socket: questions about processes, asked over a Unix socket, answered by the master."""

"""The master: keeps the processes of a node alive. No user code, no Redis, no HTTP."""

"""The worker: one forked process that claims tasks and runs them on its processor threads."""

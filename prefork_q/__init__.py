"""prefork-q: a task queue on Redis with prefork workers."""

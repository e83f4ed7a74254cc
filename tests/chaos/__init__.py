"""Faults at random under a service at work, and a checker of what must hold all the same; see `__main__`."""

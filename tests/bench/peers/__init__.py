"""One file a contender: its handlers, and how tasks are submitted to it. Run in its own environment.

These files import their library and `ledger` beside them, nothing of this repository (but for the project's
own): each runs with this folder on its path, in a virtual environment that has the library alone.
"""

"""The command line: wiring. It imports anything and is imported by nothing."""

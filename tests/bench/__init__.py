"""Measurements, run by hand; nothing here is collected by pytest."""

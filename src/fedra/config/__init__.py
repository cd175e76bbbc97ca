"""Configurations: schema, reading, overrides, names, defaults."""

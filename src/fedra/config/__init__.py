"""Run configurations: schema, TOML files, overrides, registered names and defaults."""

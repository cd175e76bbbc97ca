"""Configuration, the run, its folder, its checkpoint and its pictures."""

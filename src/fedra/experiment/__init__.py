"""Experiments: build a job from a configuration or objects, run its rounds, evaluate and export the model."""

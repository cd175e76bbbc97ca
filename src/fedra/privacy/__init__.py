"""Differential privacy, secure aggregation and audits of what a trained model reveals."""

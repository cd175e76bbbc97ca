"""What happens inside a run: knowledge kept and lost, drift, and the proximal gradient."""

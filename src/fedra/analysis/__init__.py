"""What happens inside a run (knowledge kept and lost, drift, the proximal gradient) and in its embeddings."""

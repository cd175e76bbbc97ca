"""Analysis of a run (forgetting, drift, the proximal gradient) and of its embeddings (angles, t-SNE)."""

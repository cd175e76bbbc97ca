"""What is kept on disk: run folders, checkpoints, client state, trained models."""

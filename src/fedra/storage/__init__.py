"""What is stored on disk: run folders, checkpoints, client state, trained models."""

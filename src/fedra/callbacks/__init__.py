"""What happens alongside training."""

"""From photographs to aligned crops: reading, detection, landmarks, alignment."""

"""From photos to aligned crops: reading, detection, landmarks and alignment."""

"""Recognition of aligned faces: recognizers, galleries and thresholds."""

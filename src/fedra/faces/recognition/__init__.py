"""From aligned faces to names: recognizers, galleries, thresholds."""

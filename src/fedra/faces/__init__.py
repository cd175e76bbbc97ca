"""From photographs to names: detection, alignment, galleries of templates, verification and identification."""

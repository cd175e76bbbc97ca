"""The benchmarks of the field: verification, identification, IJB-B and IJB-C, MegaFace."""

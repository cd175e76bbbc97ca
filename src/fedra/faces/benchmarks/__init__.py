"""Face recognition benchmarks: verification, identification, IJB-B, IJB-C and MegaFace."""

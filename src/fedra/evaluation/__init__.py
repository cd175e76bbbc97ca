"""How good a model is for whom."""

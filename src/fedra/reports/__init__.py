"""Tables, curves and cards of runs."""

"""Tables, plots and model cards of runs."""

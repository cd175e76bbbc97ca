"""Attacks on a finished run of your own: what its model, its class vectors and its uploads reveal."""

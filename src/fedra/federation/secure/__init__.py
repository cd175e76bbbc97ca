"""Secure rounds of a federation: the messages, and both sides of them."""

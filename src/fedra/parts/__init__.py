"""Parts that two or more algorithms share; the file's name is the slot's name. Importing them makes them known."""

from fedra.parts import combine, gradient, margin, objective, personalise, server

__all__ = ["combine", "gradient", "margin", "objective", "personalise", "server"]

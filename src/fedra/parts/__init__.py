"""Parts that two or more algorithms share; the file's name is the slot's name."""

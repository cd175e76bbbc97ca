"""Its place puts `tests` on the import path, for the toy federation that several folders share."""

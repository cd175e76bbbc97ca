"""Reference pages made from the code: one function per kind of page, each giving {path: text}."""

"""Reference pages generated from the code: one module per kind of page, each returning {path: text}."""

"""The jobs of `bare.Work` on other libraries; each file runs in its library's own environment."""

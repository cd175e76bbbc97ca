"""Commands that judge a model: eval."""

"""A real federation: a coordinator and sites that train together over a network, with images that stay at the sites."""

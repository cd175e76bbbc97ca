"""The link over the internet, on Flower's protocol, transfer and link state. Nothing else in fedra imports Flower."""

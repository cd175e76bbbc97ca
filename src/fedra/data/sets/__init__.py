"""Loaders of data sets, one file per family; `fedra.data.DATASETS` imports them by name."""

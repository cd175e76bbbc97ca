"""fedra: federated recognition with angular margins."""

__version__ = "0.1.0"

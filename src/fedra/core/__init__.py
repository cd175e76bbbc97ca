"""The one loop of federated learning and the seams where algorithms differ. Read `round.py` first."""

"""Secure aggregation: the server learns the sum of the clients' vectors and no single one of them.

The protocol of Bonawitz et al. (CCS 2017) on the sparse graph of Bell et al. (CCS 2020), as functions from a state and
a message to a new state and a reply, so the simulator and a federation run the same code.
"""

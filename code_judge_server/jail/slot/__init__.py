"""A slot: the process that starts, confines and ends one job after the other."""

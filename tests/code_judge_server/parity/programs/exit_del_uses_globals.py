import os

NAME = "name"


class Noisy:
    def __del__(self):
        print("del", NAME, os is None)


it = Noisy()


def function_makes_a_cycle():
    return it

import sys


class Why:
    def __str__(self):
        return "because"


sys.exit(Why())

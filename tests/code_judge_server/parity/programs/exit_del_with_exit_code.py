import sys


class Noisy:
    def __del__(self):
        print("del")


it = Noisy()
sys.exit(3)

class Noisy:
    def __del__(self):
        raise ValueError("in del")


it = Noisy()
del it
print("goes on")

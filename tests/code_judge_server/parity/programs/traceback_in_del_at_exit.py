class Noisy:
    def __del__(self):
        print("dying", self.name)
        raise ValueError("in del at exit")


it = Noisy()
it.name = "it"

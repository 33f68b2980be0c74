class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name)


a = Noisy("a")
_private = Noisy("private")
b = Noisy("b")
cycle = Noisy("cycle")
cycle.me = cycle
items = [Noisy("item")]
print("end of main")

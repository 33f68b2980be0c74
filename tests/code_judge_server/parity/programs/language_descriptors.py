class Typed:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, it, owner): return self if it is None else getattr(it, self.name)
    def __set__(self, it, value):
        if not isinstance(value, int): raise TypeError(f"{self.name[1:]} must be int, not {type(value).__name__}")
        setattr(it, self.name, value)
class P:
    x = Typed()
p = P(); p.x = 3
print(p.x, vars(p), P.__dict__["x"].name)
p.x = "no"

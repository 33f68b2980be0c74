import functools
@functools.total_ordering
class V:
    def __init__(self, *c): self.c = c
    def __add__(self, o): return V(*(a + b for a, b in zip(self.c, o.c)))
    def __eq__(self, o): return self.c == o.c
    def __lt__(self, o): return self.c < o.c
    def __repr__(self): return f"V{self.c}"
    def __getitem__(self, i): return self.c[i]
    def __len__(self): return len(self.c)
    def __format__(self, spec): return f"<{spec}>"
    __hash__ = None
print(V(1, 2) + V(3, 4), V(1) <= V(2), sorted([V(2), V(1)]), list(V(7, 8)), f"{V(1):spec}", bool(V()))
hash(V(1))

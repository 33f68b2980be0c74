import gc

print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage)


class Node:
    pass


a, b = Node(), Node()
a.b, b.a = b, a
del a, b
print(gc.collect() >= 2, len([it for it in gc.get_objects() if isinstance(it, Node)]))

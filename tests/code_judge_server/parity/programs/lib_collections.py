from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
Point = namedtuple("Point", "x y", defaults=[0])
print(Point(1), Point._fields, Point(1, 2)._replace(x=5), Point.__module__)
print(Counter("mississippi").most_common(), Counter("ab") & Counter("bc"))
d = defaultdict(list); d["k"].append(1); print(d)
q = deque(range(5), maxlen=3); q.rotate(1); print(q)
print(ChainMap({"a": 1}, {"a": 2, "b": 3})["b"], OrderedDict(a=1))

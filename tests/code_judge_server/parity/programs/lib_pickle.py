import copy, pickle
class Node:
    def __init__(self, value): self.value = value
    def __repr__(self): return f"Node({self.value})"
data = pickle.dumps([Node(1), Node, len, {"a": (1, 2)}])
print(pickle.loads(data), b"__main__" in data, copy.deepcopy({"n": Node(2)}))
pickle.dumps(lambda: 0)

import pprint
pprint.pprint({"key": list(range(30)), "nested": {"a": [{"b": i} for i in range(10)]}}, width=60)

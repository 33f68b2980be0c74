import pickle
deep = []
for _ in range(100_000):
    deep = [deep]
pickle.dumps(deep)

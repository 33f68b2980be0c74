import numpy as np
np.random.seed(42)
print(np.random.rand(3), np.random.randint(0, 10, 5), np.random.normal(size=2), np.random.permutation(5))
rng = np.random.default_rng(7)
print(rng.random(2), rng.integers(0, 100, 3), rng.choice(["a", "b"], 3), np.random.RandomState(1).rand())

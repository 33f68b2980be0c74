import numpy as np
a = np.arange(12).reshape(3, 4)
print(a, a.T.shape, a.sum(axis=0), a[a % 2 == 0], a.dtype, a.strides, a @ a.T)
print(np.linspace(0, 1, 5), np.eye(2), np.array([1.5, np.nan, np.inf]), np.array(["a", "bc"]))
print(repr(np.float64(1) / 3), np.int32(5) * 2, np.array([1, 2]) / 3, np.mean([1, 2, 4]), np.median(a))

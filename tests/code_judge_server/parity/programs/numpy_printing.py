import numpy as np
np.set_printoptions(precision=3, suppress=True)
print(np.array([1e-10, 123456.789, 1 / 3]), np.arange(2000), repr(np.array([[True, False]])), np.array([1 + 2j]))
print(f"{np.float64(2.5):.3f}", str(np.datetime64("2024-01-01") + np.timedelta64(1, "D")), np.ma.array([1, 2], mask=[0, 1]))

import numpy as np
print(np.array([1.0, 0.0]) / 0)
print(np.log(-1), np.int32(2**31 - 1) + np.int32(1), np.sqrt(np.array([-1.0])))
with np.errstate(all="raise"):
    np.array([1.0]) / 0

import numpy as np
m = np.array([[4.0, 1.0], [2.0, 3.0]])
print(np.linalg.eigvals(m), np.linalg.det(m), np.linalg.inv(m), np.linalg.solve(m, [1, 2]))
u, s, v = np.linalg.svd(m)
print(s.round(6), np.linalg.matrix_rank(m), np.linalg.norm(m), np.allclose(u * s @ v, m))
np.linalg.inv(np.zeros((2, 2)))

import io
import numpy as np
people = np.array([("a", 1), ("b", 2)], dtype=[("name", "U5"), ("age", "i4")])
print(people["age"].mean(), people[people["age"] > 1])
np.save("a.npy", np.arange(3)); print(np.load("a.npy"), np.loadtxt(io.StringIO("1 2\n3 4")))
np.savetxt(__import__("sys").stdout, np.eye(2), fmt="%.1f")
print(np.frombuffer(b"\x01\x02", dtype=np.uint8), np.unique([3, 1, 3], return_counts=True), np.einsum("ij,jk", np.eye(2), np.ones((2, 2))))

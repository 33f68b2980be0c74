import numpy as np
import sympy as sp
x = sp.symbols("x")
f = sp.lambdify(x, sp.sin(x) ** 2 + 1, "numpy")
print(f(np.array([0.0, 1.0])), sp.Matrix(np.eye(2, dtype=int)), np.array(sp.Matrix([[1, 2]]).tolist(), dtype=float), f.__doc__.splitlines()[0])

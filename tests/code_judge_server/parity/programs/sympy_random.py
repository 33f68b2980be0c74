from sympy.core.random import rng, seed
from sympy import randMatrix, randprime
a = rng.random()
seed(5)
print(rng.random(), a != rng.random(), randMatrix(2, 2, seed=3), 10 < randprime(10, 20) < 20)

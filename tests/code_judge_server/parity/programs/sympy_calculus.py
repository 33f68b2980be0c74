from sympy import *
x, n = symbols("x n")
print(diff(sin(x) * exp(x), x), integrate(1 / (1 + x**2), x), integrate(exp(-x**2), (x, -oo, oo)), limit(sin(x) / x, x, 0))
print(series(cos(x), x, 0, 6), summation(1 / n**2, (n, 1, oo)), simplify(sin(x)**2 + cos(x)**2), Sum(n, (n, 1, 10)).doit())

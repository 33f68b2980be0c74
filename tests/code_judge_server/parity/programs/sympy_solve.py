from sympy import Eq, Symbol, nsolve, solve, solveset, symbols, S, linsolve
x, y = symbols("x y")
print(solve(x**2 - 2, x), solve([x + y - 3, x - y - 1], [x, y]), solveset(x**2 + 1, x, S.Complexes), linsolve([x + y - 1, x - y], x, y))
print(solve(Eq(x**3 - 6 * x**2 + 11 * x, 6)), nsolve(x**3 - x - 1, x, 1), solve(x**2 < 4, x))

from sympy import *
x, a, b = symbols("x a b")
print(simplify_logic(a & (b | ~a)), satisfiable(a & ~b), Interval(0, 1).union(Interval(2, 3)), FiniteSet(1, 2) & FiniteSet(2, 3), reduce_inequalities([x > 1, x < 3]))
print(Piecewise((x, x > 0), (0, True)).subs(x, -1), Abs(-3), sign(x).subs(x, -2), ask(Q.even(4)), combinatorics.Permutation([1, 2, 0]).order())

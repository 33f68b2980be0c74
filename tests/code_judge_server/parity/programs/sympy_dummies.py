from sympy import Dummy, Lambda, Wild, numbered_symbols, symbols
x = symbols("x")
print(Dummy(), Dummy("a"), Dummy("a") == Dummy("a"), next(numbered_symbols()), Lambda(x, x**2), (x + 1).subs(x, Dummy("t")))

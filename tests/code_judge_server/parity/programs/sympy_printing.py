from sympy import *
x = symbols("x")
expression = Integral(sqrt(1 / x), (x, 0, 1)) + Rational(1, 3)
pprint(expression)
print(latex(expression), srepr(x + 1), pretty(x**2 / 3), ccode(x**2), expression.evalf(30), N(pi, 40))
print(Matrix([[1, x], [x**2, 2]]).det(), Matrix([[2, 0], [0, 3]]).eigenvals(), factor(x**4 - 1), expand((x + 1)**5), apart(1 / (x * (x + 1))))

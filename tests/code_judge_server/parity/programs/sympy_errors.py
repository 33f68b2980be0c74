from sympy import *
x = symbols("x")
try:
    sympify("x +* 2")
except SympifyError as error:
    print(type(error).__name__)
print(x / 0, zoo + 1, sqrt(-1), log(0))
if x > 1:
    print("never")

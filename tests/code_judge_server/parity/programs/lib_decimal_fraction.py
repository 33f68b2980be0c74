from decimal import Decimal, InvalidOperation, getcontext, localcontext
from fractions import Fraction
getcontext().prec = 50
print(Decimal(2).sqrt(), Decimal("0.1") + Decimal("0.2"), round(Decimal("2.675"), 2))
with localcontext() as context:
    context.prec = 5
    print(Decimal(1) / 7)
print(Fraction(1, 3) + Fraction("0.25"), Fraction(3.14).limit_denominator(100), float(Fraction(22, 7)))
Decimal("x")

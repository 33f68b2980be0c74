from sympy import *
print(factorint(2**32 + 1), isprime(2**61 - 1), nextprime(1000), primerange(10, 30), list(primerange(10, 30)), totient(36), divisors(28))
print(gcd(48, 36), mod_inverse(3, 11), binomial(10, 3), factorial(20), fibonacci(50), Rational(3, 4) + Rational(1, 6), continued_fraction(sqrt(2)))

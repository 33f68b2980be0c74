import cmath, math, operator, statistics
print(math.pi, math.factorial(50), math.comb(100, 50), math.isqrt(10**40), math.gcd(12, 18, 24), math.lcm(4, 6), math.perm(5, 2))
print(math.fsum([0.1] * 10), sum([0.1] * 10), math.nextafter(1, 2), math.inf, math.hypot(3, 4, 12), cmath.sqrt(-1))
print(statistics.mean([1, 2, 3, 4]), statistics.stdev([1, 2, 3]), statistics.median([3, 1]), statistics.quantiles(range(10)))
print(2**200, -7 // 2, -7 % 3, divmod(-7, 2), pow(3, -1, 7), round(2.5), round(-1.5), 0.1 + 0.2, 1e16 + 1)
math.sqrt(-1)

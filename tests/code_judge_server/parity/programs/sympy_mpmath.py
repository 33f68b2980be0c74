import mpmath
from mpmath import mp
mp.dps = 50
print(mp.pi, mpmath.zeta(3), mpmath.quad(lambda t: mpmath.exp(-t**2), [-mpmath.inf, mpmath.inf]), mpmath.findroot(mpmath.sin, 3))

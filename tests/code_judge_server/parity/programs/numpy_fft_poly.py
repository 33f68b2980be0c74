import numpy as np
print(np.fft.fft([1, 2, 3, 4]), np.fft.ifft([10, -2, -2, -2]).real, np.polyfit([0, 1, 2], [1, 3, 7], 2).round(6), np.roots([1, -3, 2]))
print(np.polynomial.Polynomial([1, 2, 3])(2), np.convolve([1, 2], [1, 1]), np.interp(1.5, [1, 2], [10, 20]), np.cumsum([1, 2, 3]))

import numpy as np
try:
    np.zeros(3) + np.zeros(4)
except ValueError as error:
    print(error)
try:
    np.array([1, 2])[5]
except IndexError as error:
    print(error)
np.zeros((2, 2)) @ np.zeros((3, 3))

import sys
import numpy as np
print(np.__version__, np.geterr(), np.get_printoptions()["precision"], np.random is sys.modules["numpy.random"])

import random
import numpy as np
print(len({float(np.random.rand()), float(np.random.default_rng().random()), random.random(), float(np.random.rand())}))
print(np.random.get_state()[0], 0 <= np.random.get_state()[2] <= 624, np.random.get_bit_generator() if hasattr(np.random, "get_bit_generator_") else "")

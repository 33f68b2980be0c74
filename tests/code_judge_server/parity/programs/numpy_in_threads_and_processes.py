import multiprocessing
from concurrent.futures import ThreadPoolExecutor
import numpy as np
def work(n):
    return float(np.linalg.det(np.eye(50) * n) ** (1 / 50))
if __name__ == "__main__":
    with ThreadPoolExecutor(3) as pool:
        print([round(x, 6) for x in pool.map(work, [1, 2, 3])])
    with multiprocessing.Pool(2) as pool:
        print([round(x, 6) for x in pool.map(work, [1, 2, 3])])

from concurrent.futures import ThreadPoolExecutor
import time
pool = ThreadPoolExecutor(2)
pool.submit(lambda: (time.sleep(0.1), print("pool work done")))
print("main ends")

from concurrent.futures import ThreadPoolExecutor, as_completed
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda n: n * n, range(10))))
    futures = [pool.submit(divmod, n, 3) for n in range(5)]
    print(sorted(future.result() for future in as_completed(futures)))
    print(repr(pool.submit(int, "x").exception()))

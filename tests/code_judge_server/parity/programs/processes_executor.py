from concurrent.futures import ProcessPoolExecutor
def cube(n):
    return n ** 3
if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(cube, range(5))))

for n in range(20_000):
    print("line", n)

data = [[n, str(n), {n: n}] for n in range(100_000)]
print(len(data))

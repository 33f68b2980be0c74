print(1, 2, 3, sep="-", end="!\n")
print(*"abc", sep="\n")
print()
print("a", None, True, 1.0, 1e100, float("nan"), [1], {"k": (1,)}, {1}, b"b", 3 + 4j)

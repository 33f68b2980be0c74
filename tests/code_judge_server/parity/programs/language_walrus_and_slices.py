values = [y := 5, y**2, *range(3)]
print(values, values[::-1], values[1:-1], [*"ab"], {**{"a": 1}, "b": 2}, (lambda *a, k=1, **kw: (a, k, kw))(1, 2, z=3))
first, *rest = values
print(first, rest, 1 < 2 < 3, "yes" if rest else "no", not None, 5 & 3 | 4 ^ 1, ~5, 3 @ 4 if False else ...)
for i in range(3):
    if i == 5: break
else:
    print("else of for", i)

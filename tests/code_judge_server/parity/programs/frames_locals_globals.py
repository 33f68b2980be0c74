x = 5


def f():
    y = 6
    print(sorted(locals()), "x" in globals(), vars() is not None)


f()
print(eval("x + 1"), [k for k in dir() if not k.startswith("_")])
exec("z = x * 2")
print(z)

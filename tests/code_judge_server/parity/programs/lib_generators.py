def tree(n):
    if n:
        yield from tree(n - 1)
        got = yield n
        if got: print("got", got)
    return "done"
it = tree(3)
print(next(it), it.send("x"), list(it))
def averager():
    total = count = 0
    while True:
        total += yield total / count if count else None
        count += 1
a = averager(); next(a)
print(a.send(10), a.send(20))
a.throw(RuntimeError("thrown in"))

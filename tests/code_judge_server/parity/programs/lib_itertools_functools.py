import functools, itertools
print(list(itertools.permutations("abc", 2))[:4], list(itertools.combinations_with_replacement("ab", 2)))
print(list(itertools.accumulate([1, 2, 3], lambda a, b: a * b)), list(itertools.pairwise("abcd")), list(itertools.zip_longest("ab", "c")))
print({k: list(g) for k, g in itertools.groupby([1, 1, 2])}, list(itertools.islice(itertools.count(5, 5), 3)))
@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
print(fib(200), fib.cache_info(), functools.reduce(lambda a, b: a - b, [10, 2, 3]), functools.partial(int, base=2)("101"))
@functools.singledispatch
def show(x): return "object"
@show.register
def _(x: int): return "int"
print(show(1), show("x"))

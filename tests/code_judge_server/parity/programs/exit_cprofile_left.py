import cProfile
profile = cProfile.Profile()
profile.enable()
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
print(fibonacci(10))

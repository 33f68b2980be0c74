def numbers():
    yield 1
    raise StopIteration("inside")


list(numbers())

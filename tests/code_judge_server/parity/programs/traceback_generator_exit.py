def numbers():
    try:
        yield 1
    except GeneratorExit:
        yield 2


it = numbers()
next(it)
it.close()

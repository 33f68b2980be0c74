from contextlib import contextmanager


@contextmanager
def region():
    print("enter")
    try:
        yield
    finally:
        print("leave")


manager = region()
manager.__enter__()

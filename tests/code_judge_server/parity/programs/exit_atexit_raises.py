import atexit, traceback

atexit.register(print, "still runs")


@atexit.register
def bad():
    raise ValueError("in atexit")


atexit.register(traceback.print_stack)

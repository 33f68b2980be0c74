import inspect, sys, traceback


def outer():
    inner()


def inner():
    traceback.print_stack()
    print([frame.function for frame in inspect.stack()], file=sys.stderr)
    frame = sys._getframe()
    while frame is not None:
        print(frame.f_code.co_name, frame.f_lineno)
        frame = frame.f_back


outer()
try:
    sys._getframe(1)
except ValueError as error:
    print(error)

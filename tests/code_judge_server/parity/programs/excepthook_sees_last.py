import atexit, sys


@atexit.register
def show():
    print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno, "__file__" in globals())


raise OSError(2, "No such thing", "name")

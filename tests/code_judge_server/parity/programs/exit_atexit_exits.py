import atexit, sys

atexit.register(print, "also")
atexit.register(sys.exit, 5)

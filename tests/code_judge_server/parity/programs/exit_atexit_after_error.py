import atexit

atexit.register(print, "cleanup")
raise RuntimeError("fails")

import faulthandler, sys, tracemalloc
print(faulthandler.is_enabled(), tracemalloc.is_tracing())
def f():
    faulthandler.dump_traceback(all_threads=False)
f()
faulthandler.enable()
import ctypes
ctypes.string_at(0)

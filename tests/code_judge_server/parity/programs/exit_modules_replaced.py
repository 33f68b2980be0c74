import atexit, ctypes, gc, io, operator, signal, sys, types, weakref
atexit.register(lambda: sys.__stdout__.write("atexit\n"))
def refuse(*arguments):
    sys.__stdout__.write("called\n")
    raise RuntimeError("not to be called at the end of a program")
atexit._run_exitfuncs = gc.get_objects = gc.collect = operator.call = signal.signal = signal.raise_signal = refuse
ctypes.pythonapi = ctypes.c_size_t = ctypes.c_void_p = None
io.IOBase = types.GeneratorType = types.CoroutineType = weakref.ref = sys.stdlib_module_names = sys.UnraisableHookArgs = None
sys.modules = None
class Meta(type):
    __call__ = __instancecheck__ = __subclasscheck__ = refuse
    def __getattribute__(cls, name):
        return refuse()
class Strange(metaclass=Meta):
    pass
strange = object.__new__(Strange)
sys.__stdout__.write("end\n")

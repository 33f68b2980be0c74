import ctypes, ctypes.util
libc = ctypes.CDLL(None, use_errno=True)
print(libc.strlen(b"hello"), libc.abs(-5), ctypes.sizeof(ctypes.c_long))
class Pair(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_double)]
print(Pair(1, 2.5).b, bytes(ctypes.c_int(258)), ctypes.create_string_buffer(b"x", 3).raw)
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
array = (ctypes.c_int * 4)(3, 1, 2, 0)
libc.qsort(array, 4, 4, compare(lambda a, b: a[0] - b[0]))
print(list(array), libc.open(b"/missing", 0), ctypes.get_errno())
ctypes.c_int("x")

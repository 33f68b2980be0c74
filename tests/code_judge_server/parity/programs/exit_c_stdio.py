import ctypes

libc = ctypes.CDLL(None)
libc.printf(b"through C %d\n", 5)
print("through Python")

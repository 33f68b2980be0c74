try:
    data = bytearray(10**13)
except MemoryError as error:
    print("MemoryError", error)
[0] * 10**15

import os, sys
print(os.read(0, 4), os.read(0, 100), os.read(0, 100))
print(repr(sys.stdin.read()))

import os, sys

print(hash("abc"), hash(b"abc"), hash(1.5), hash((1, "x")), list({"banana", "apple", "cherry", "date"}))
print(sys.flags.hash_randomization, os.environ["PYTHONHASHSEED"])

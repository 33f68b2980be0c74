import os

copy = os.fdopen(os.dup(1), "w")
copy.write("from the copy\n")
print("from print")

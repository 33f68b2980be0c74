import os

print("lost, for it is not flushed")
os._exit(11)

import os

print("lost", flush=False)
os.abort()
